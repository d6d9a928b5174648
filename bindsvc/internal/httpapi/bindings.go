package httpapi

import (
	"errors"
	"fmt"

	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

func viewBinding(b gateway.Binding) api.Binding {
	view := api.Binding{
		ID: b.ID, ServiceID: b.ServiceID, UserID: orNull(b.UserID), Username: orNull(b.Username), NodeID: b.NodeID,
		Epoch: b.Epoch, CreateTime: b.CreatedAt, UpdateTime: b.UpdatedAt,
	}
	if b.ImportID != 0 {
		view.ImportID = &b.ImportID
	}
	return view
}

// ListRoutes answers with a page of bindings.
func (a admin) ListRoutes(c echo.Context, params api.ListRoutesParams) error {
	page, size := pageOf(params.Page, params.Size)
	filter := gateway.BindingFilter{
		ServiceID: textOf(params.ServiceID), Keyword: textOf(params.Keyword), Offset: (page - 1) * size, Limit: size,
	}
	bindings, total, err := a.store.ListBindings(c.Request().Context(), filter)
	if err != nil {
		return gateway.Unavailable(err)
	}
	return a.succeed(c, pageView(total, page, size, bindings, viewBinding))
}

// pageView is a page of records as every list answers.
func pageView[R, V any](total int64, page, size int, records []R, view func(R) V) map[string]any {
	views := make([]V, len(records))
	for i, record := range records {
		views[i] = view(record)
	}
	return map[string]any{"total": total, "page": page, "size": size, "records": views}
}

// Bind binds or rebinds a user.
func (a admin) Bind(c echo.Context) error {
	var in api.BindRequest
	if err := decodeJSON(c, maxAdminBody, &in); err != nil {
		return err
	}
	want := gateway.Assignment{ServiceID: in.ServiceID, NodeID: in.NodeID, UserID: string(in.UserID), Username: textOf(in.Username)}
	if err := verifyAssignment(want); err != nil {
		return err
	}
	result, err := a.bindings.Bind(c.Request().Context(), want)
	if err != nil {
		return stored(err)
	}
	return a.succeed(c, viewBinding(result.Binding))
}

func verifyAssignment(want gateway.Assignment) error {
	var problems []error
	if want.UserID == "" && want.Username == "" {
		problems = append(problems, errors.New("userId or username is needed"))
	}
	if want.UserID != "" {
		problems = append(problems, gateway.VerifyUserID("userId", want.UserID))
	}
	if want.Username != "" {
		problems = append(problems, gateway.VerifyName("username", want.Username))
	}
	return verified(errors.Join(problems...))
}

// Unbind deletes a binding.
func (a admin) Unbind(c echo.Context, id int64) error {
	result, err := a.bindings.Unbind(c.Request().Context(), id)
	if err != nil {
		return missing(stored(err), fmt.Sprintf("there is no binding %d", id))
	}
	return a.succeed(c, viewBinding(result.Binding))
}
