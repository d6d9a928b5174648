package httpapi

import (
	"encoding/json"
	"fmt"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/routers"

	"github.com/homenode/homenode/bindsvc/internal/gateway"
)

// The operations whose bodies hold policies.
const (
	setsPolicy   = "setPolicy"
	setsPolicies = "setPolicies"
)

// holdsPolicies reports whether the body of the operation is verified by verifyPolicies.
// The document's schema Policy, any of all kinds, would not say which field is wrong.
func holdsPolicies(operation *openapi3.Operation) bool {
	return operation.OperationID == setsPolicy || operation.OperationID == setsPolicies
}

// policySchemas are the document's names of what the kinds of policy hold.
var policySchemas = map[gateway.PolicyKind]string{
	gateway.PolicyGuards: "GuardSwitch", gateway.PolicyMaintenance: "MaintenancePolicy", gateway.PolicyIdentity: "IdentityPolicy",
	gateway.PolicyApps: "AppPolicy", gateway.PolicySignature: "SignaturePolicy", gateway.PolicyRateLimit: "RateLimitPolicy",
	gateway.PolicyAccess: "AccessPolicy", gateway.PolicyDegradation: "DegradationPolicy", gateway.PolicyAnswers: "AnswersPolicy",
}

// verifyPolicies says what is not as the document says in a policy of that kind, or in
// a list of them. The content is valid JSON.
func verifyPolicies(route *routers.Route, kind gateway.PolicyKind, content []byte) []string {
	var body any
	if err := json.Unmarshal(content, &body); err != nil {
		return []string{"the body is not a JSON object"} // nested too deeply
	}
	schemas := route.Spec.Components.Schemas
	ofKind := schemas[policySchemas[kind]].Value
	if route.Operation.OperationID == setsPolicy {
		return problemsOf(ofKind.VisitJSON(body, openapi3.MultiErrors()))
	}
	bodies := takeBodies(body)
	problems := problemsOf(schemas["PolicyList"].Value.VisitJSON(body, openapi3.MultiErrors()))
	for _, one := range bodies {
		if len(problems) >= maxProblems {
			break
		}
		for _, problem := range problemsOf(ofKind.VisitJSON(one.body, openapi3.MultiErrors())) {
			problems = append(problems, fmt.Sprintf("policies.%d.body: %s", one.index, problem))
		}
	}
	return problems[:min(len(problems), maxProblems)]
}

type indexedBody struct {
	index int
	body  map[string]any
}

// takeBodies takes the bodies out of a list of policies, and leaves empty ones for them.
func takeBodies(list any) (bodies []indexedBody) {
	fields, _ := list.(map[string]any)
	policies, _ := fields["policies"].([]any)
	for i, entry := range policies {
		entry, _ := entry.(map[string]any)
		if body, ok := entry["body"].(map[string]any); ok {
			bodies = append(bodies, indexedBody{i, body})
			entry["body"] = map[string]any{}
		}
	}
	return bodies
}
