package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/gorillamux"
	"github.com/labstack/echo/v4"

	"github.com/homenode/homenode/bindsvc/api"
	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// document is openapi.yaml, read once.
var document = sync.OnceValues(func() (*openapi3.T, error) {
	doc, err := openapi3.NewLoader().LoadFromData(api.Document)
	if err != nil {
		return nil, err
	}
	return doc, doc.Validate(openapi3.NewLoader().Context)
})

// Limits of bodies; the document tells those that are not the usual one.
const (
	maxAdminBody    = 64 << 10
	maxPolicyBody   = 1 << 20
	maxPoliciesBody = 8 << 20
)

// bodyLimit is the most bytes that the operation reads.
func bodyLimit(operation *openapi3.Operation) int64 {
	switch operation.OperationID {
	case setsPolicy:
		return maxPolicyBody
	case setsPolicies:
		return maxPoliciesBody
	}
	return maxAdminBody
}

// conformant refuses requests that are not as the document says, naming what is wrong.
func conformant() (echo.MiddlewareFunc, error) {
	doc, err := document()
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	router, err := gorillamux.NewRouter(doc)
	if err != nil {
		return nil, fmt.Errorf("openapi.yaml: %w", err)
	}
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			if err := verifyRequest(c, router); err != nil {
				return err
			}
			return next(c)
		}
	}, nil
}

func verifyRequest(c echo.Context, router routers.Router) error {
	request := c.Request()
	route, parameters, err := router.FindRoute(request)
	if err != nil {
		return &gateway.Error{Reason: gateway.NotFound}
	}
	if err := verifyQuery(request, route); err != nil {
		return err
	}
	for name, value := range parameters {
		if decoded, err := url.PathUnescape(value); err != nil || !storable(decoded) {
			return invalid(fmt.Sprintf("%s contains NUL, or is not UTF-8", name))
		}
	}
	options := &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc, MultiError: true}
	var content []byte
	if body := route.Operation.RequestBody; body != nil && body.Value.GetMediaType("application/json") != nil {
		if content, err = bufferBody(c, bodyLimit(route.Operation)); err != nil {
			return err
		}
		request.Header.Set("Content-Type", "application/json") // curl -d says otherwise, and means this
	} else {
		options.ExcludeRequestBody = true
	}
	options.ExcludeRequestBody = options.ExcludeRequestBody || holdsPolicies(route.Operation)
	input := &openapi3filter.RequestValidationInput{Request: request, PathParams: parameters, Route: route, Options: options}
	if err := openapi3filter.ValidateRequest(request.Context(), input); err != nil {
		return invalid(strings.Join(problemsOf(err), "; "))
	}
	if holdsPolicies(route.Operation) {
		if problems := verifyPolicies(route, gateway.PolicyKind(parameters["kind"]), content); len(problems) > 0 {
			return invalid(strings.Join(problems, "; "))
		}
	}
	return nil
}

// verifyQuery refuses parameters that the operation does not have: a filter with a
// typing mistake would otherwise select everything.
func verifyQuery(request *http.Request, route *routers.Route) error {
	for name, values := range request.URL.Query() {
		if route.Operation.Parameters.GetByInAndName("query", name) == nil && route.PathItem.Parameters.GetByInAndName("query", name) == nil {
			return invalid(fmt.Sprintf("there is no query parameter %.40q", name))
		}
		if len(values) > 1 {
			return invalid(fmt.Sprintf("query parameter %q is given twice", name))
		}
		if !storable(values[0]) {
			return invalid(fmt.Sprintf("query parameter %q contains NUL, or is not UTF-8", name))
		}
	}
	return nil
}

// bufferBody reads the body, which can then be read again.
func bufferBody(c echo.Context, limit int64) ([]byte, error) {
	content, err := io.ReadAll(http.MaxBytesReader(c.Response(), c.Request().Body, limit))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return nil, &gateway.Error{Reason: gateway.TooLarge}
	case err != nil:
		return nil, invalid("the body broke off")
	case !json.Valid(content):
		return nil, invalid("the body is not a JSON object")
	case !utf8.Valid(content):
		return nil, invalid("the body is not UTF-8")
	case hasNUL(content):
		return nil, invalid("the body has a text with NUL in it")
	}
	c.Request().Body = io.NopCloser(bytes.NewReader(content))
	c.Request().ContentLength = int64(len(content))
	return content, nil
}

// storable reports whether every store can hold the text.
func storable(text string) bool { return utf8.ValidString(text) && !strings.ContainsRune(text, 0) }

// hasNUL reports whether a text of valid JSON has a NUL.
func hasNUL(content []byte) bool {
	decoder := json.NewDecoder(bytes.NewReader(content))
	for {
		token, err := decoder.Token()
		if err != nil {
			return false // the end
		}
		if text, ok := token.(string); ok && strings.ContainsRune(text, 0) {
			return true
		}
	}
}

const maxProblems = 10

// problemsOf says what is wrong with a request, field by field, without its values:
// one of them may be a token.
func problemsOf(err error) []string {
	var several openapi3.MultiError
	var inRequest *openapi3filter.RequestError
	var inSchema *openapi3.SchemaError
	switch {
	case errors.As(err, &inRequest):
		where := ""
		if inRequest.Parameter != nil {
			where = inRequest.Parameter.Name
		}
		return prefixed(where, problemsOf(inRequest.Err), inRequest.Reason)
	case errors.As(err, &several):
		var all []string
		for _, one := range several {
			all = append(all, problemsOf(one)...)
		}
		return all[:min(len(all), maxProblems)]
	case errors.As(err, &inSchema):
		return prefixed(strings.Join(inSchema.JSONPointer(), "."), nil, inSchema.Reason)
	case err == nil:
		return nil
	}
	return []string{"not understood"}
}

func prefixed(where string, problems []string, otherwise string) []string {
	if len(problems) == 0 {
		problems = []string{otherwise}
	}
	if where == "" {
		return problems
	}
	all := make([]string, len(problems))
	for i, problem := range problems {
		all[i] = where + ": " + problem
	}
	return all
}

// GetDocument serves the document as JSON.
func (a admin) GetDocument(c echo.Context) error {
	doc, err := document()
	if err != nil {
		return err
	}
	return c.JSON(http.StatusOK, doc)
}
