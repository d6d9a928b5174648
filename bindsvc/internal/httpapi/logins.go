package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

type loginReport struct {
	Service       string `json:"service"`
	Node          string `json:"node"`
	Username      string `json:"username"`
	Token         string `json:"token"`
	UserID        string `json:"userId"`
	LoginUsername string `json:"loginUsername"`
	RequestID     string `json:"requestId"`
}

type loginAnswer struct {
	Node    string `json:"node"`
	Created bool   `json:"created"`
}

const maxLoginReport = 512 << 10 // a token of 64 KiB, every byte of it escaped, fits

// login answers POST /v1/logins: a node has let a user in. When it answers 200 the
// binding is committed and this token leads to it.
func (s *Server) login(c echo.Context) error {
	var report loginReport
	if err := decodeJSON(c, maxLoginReport, &report); err != nil {
		return err
	}
	login := gateway.Login{
		ServiceID: report.Service, NodeID: report.Node, UserID: report.UserID,
		Username: usable(report.Username), LoginUsername: usable(report.LoginUsername),
	}
	if err := login.Verify(); err != nil {
		return invalid(err.Error())
	}
	if report.Token == "" {
		return invalid("token is empty")
	}
	service, ok := s.registry.Snapshot().Service(login.ServiceID)
	if !ok {
		return invalid("service does not exist")
	}
	ctx := gateway.WithActor(c.Request().Context(), gateway.Actor{Name: gateway.ActorLogin, RequestID: report.RequestID})
	// The token first: should the binding fail, its user is refused until the
	// retry succeeds, and not taken for an anonymous one.
	s.sessions.Learn(ctx, service.ID, report.Token, report.UserID)
	result, err := s.bindings.LoggedIn(ctx, login)
	s.metrics.loggedIn(service.ID, result, err)
	// Neither waits for the other's store: a user whose token cannot be admitted yet must
	// not be bound elsewhere meanwhile, nor be refused as kicked out for want of a binding.
	admitErr := s.admit(ctx, service.ID, report.Token, report.UserID)
	var conflict *gateway.ConflictError
	switch {
	case errors.As(err, &conflict):
		return err
	case err != nil:
		return gateway.Unavailable(err)
	}
	if result.Created {
		s.log.InfoContext(ctx, "user bound", "service", service.ID, "user", result.Binding.UserID, "node", result.Binding.NodeID, "request", report.RequestID)
	}
	if result.Binding.NodeID != login.NodeID {
		s.log.WarnContext(ctx, "login took place on another node than the user's: the next request goes to the user's", "service", service.ID,
			"user", result.Binding.UserID, "node", result.Binding.NodeID, "login_node", login.NodeID, "request", report.RequestID)
	}
	if admitErr != nil {
		return gateway.Unavailable(admitErr)
	}
	return c.JSON(http.StatusOK, loginAnswer{Node: result.Binding.NodeID, Created: result.Created})
}

// admit makes a token good that was logged out before, or whose user was kicked out. It
// must not fail quietly: its user would be refused although they have just logged in.
func (s *Server) admit(ctx context.Context, serviceID, token, userID string) error {
	identity := s.policies.Snapshot().Identity(serviceID)
	if identity == nil || !identity.UsesBlacklist() {
		return nil
	}
	err := s.revoked.Admit(ctx, serviceID, identity.RevocationKey(token), userID)
	if errors.Is(err, gateway.ErrTooManyAdmitted) {
		s.log.WarnContext(ctx, "login of a user who was kicked out is refused later", "service", serviceID, "user", userID, "error", err)
		return nil
	}
	return err
}

// usable drops a name that no store can hold: the login counts all the same.
func usable(name string) string {
	if gateway.VerifyName("", name) != nil {
		return ""
	}
	return name
}

// decodeJSON reads one JSON object of at most limit bytes, without unknown fields.
func decodeJSON(c echo.Context, limit int64, into any) error {
	decoder := json.NewDecoder(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, trailing := decoder.Token(); !errors.Is(trailing, io.EOF) {
			err = errors.New("more than one JSON value")
		}
	}
	var tooLarge *http.MaxBytesError
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &tooLarge):
		return &gateway.Error{Reason: gateway.TooLarge}
	case errors.As(err, &syntax), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return invalid("the body is not a JSON object")
	case errors.As(err, &wrongType):
		return invalid("field " + wrongType.Field + " has the wrong type")
	}
	return invalid(err.Error())
}
