package httpapi

import (
	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
	"github.com/homenode/homenode/bindsvc/internal/policy"
)

// ListRoles answers with a page of roles of users.
func (a admin) ListRoles(c echo.Context, params api.ListRolesParams) error {
	page, size := pageOf(params.Page, params.Size)
	filter := gateway.UserRoleFilter{
		ServiceID: textOf(params.ServiceID), UserID: textOf(params.UserID), Role: textOf(params.Role), Offset: (page - 1) * size, Limit: size,
	}
	roles, total, err := a.store.ListRoles(c.Request().Context(), filter)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, pageView(total, page, size, roles, func(r gateway.UserRole) api.UserRole {
		return api.UserRole{ServiceID: r.ServiceID, UserID: r.UserID, Role: r.Role}
	}))
}

// GetRoles answers with the roles of a user.
func (a admin) GetRoles(c echo.Context, serviceID api.ServiceID, userID string) error {
	if err := verified(gateway.VerifyUserID("userId", userID)); err != nil {
		return err
	}
	if err := a.requireService(serviceID); err != nil {
		return err
	}
	return a.answerRoles(c, serviceID, userID)
}

func (a admin) answerRoles(c echo.Context, serviceID, userID string) error {
	roles, err := a.store.RolesOf(c.Request().Context(), serviceID, userID)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, api.UserRoles{ServiceID: serviceID, UserID: userID, Roles: append([]string{}, roles...)})
}

// requireService refuses a service that this instance does not know.
func (a admin) requireService(id string) error {
	if _, known := a.registry.Snapshot().Service(id); !known {
		return missing(gateway.ErrNotFound, noService(id))
	}
	return nil
}

// SetRoles gives a user exactly the roles that are given.
func (a admin) SetRoles(c echo.Context, serviceID api.ServiceID, userID string) error {
	var in api.RolesChange
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	if err := verified(gateway.VerifyUserID("userId", userID)); err != nil {
		return err
	}
	if err := a.requireService(serviceID); err != nil {
		return err
	}
	for _, role := range in.Roles {
		if err := policy.VerifyRole(role); err != nil {
			return invalid("roles: " + err.Error())
		}
	}
	if err := a.store.SetRoles(c.Request().Context(), serviceID, userID, in.Roles); err != nil {
		return stored(err)
	}
	return a.answerRoles(c, serviceID, userID)
}

// KickOut refuses all tokens that a user has now.
func (a admin) KickOut(c echo.Context) error {
	var in api.KickOutRequest
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	userID := string(in.UserID)
	if err := verified(gateway.VerifyUserID("userId", userID)); err != nil {
		return err
	}
	if err := a.requireService(in.ServiceID); err != nil {
		return err
	}
	ctx := c.Request().Context()
	snapshot := a.policies.Snapshot()
	identity := snapshot.Identity(in.ServiceID)
	if identity == nil || !identity.UsesBlacklist() {
		// A mark would come into force with a later policy, and end logins from in between.
		return a.succeed(c, api.KickedOut{ServiceID: in.ServiceID, UserID: userID})
	}
	if err := a.revoked.RevokeUser(ctx, in.ServiceID, userID, kickOutLife); err != nil {
		return gateway.Unavailable(err)
	}
	if err := a.store.Record(ctx, gateway.AuditEntry{Action: gateway.ActionUserKickedOut, ServiceID: in.ServiceID, UserID: userID}); err != nil {
		unrecorded := gateway.Unavailable(err)
		unrecorded.Detail = "the user is kicked out, but the audit does not know: send it again"
		return unrecorded
	}
	enabled, shadow := snapshot.IsEnabled(policy.GuardIdentity)
	return a.succeed(c, api.KickedOut{
		ServiceID: in.ServiceID, UserID: userID, Enforced: enabled && !shadow && !identity.Shadow,
	})
}
