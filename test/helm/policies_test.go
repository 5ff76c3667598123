package helm

import (
	"context"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// policyExpressions are the expressions of a ValidatingAdmissionPolicy.
type policyExpressions struct {
	MatchConditions []struct{ Expression string } `yaml:"matchConditions"`
	Variables       []struct{ Name, Expression string }
	Validations     []struct{ Expression string }
}

// refuses evaluates a policy as the apiserver does: false if it does not match, else whether any validation fails.
func (p policyExpressions) refuses(t *testing.T, a admission.Attributes) bool {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	declarations := cel.OptionalVariableDeclarations{}
	for _, v := range p.Variables {
		compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, declarations,
			environment.StoredExpressions)
	}
	evaluate := func(expressions []struct{ Expression string }) bool {
		var accessors []cel.ExpressionAccessor
		for _, e := range expressions {
			accessors = append(accessors, &validating.ValidationCondition{Expression: e.Expression})
		}
		condition := compiler.CompileCondition(accessors, declarations, environment.StoredExpressions)
		for _, err := range condition.CompilationErrors() {
			t.Fatal(err)
		}
		versioned := &admission.VersionedAttributes{Attributes: a, VersionedKind: a.GetKind(),
			VersionedObject: a.GetObject(), VersionedOldObject: a.GetOldObject()}
		request := cel.CreateAdmissionRequest(a, metav1.GroupVersionResource(a.GetResource()),
			metav1.GroupVersionKind(a.GetKind()))
		results, _, err := condition.ForInput(compiler.CreateContext(context.Background()), versioned, request,
			cel.OptionalVariableBindings{}, nil, celconfig.RuntimeCELCostBudget)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range results {
			if r.Error != nil || r.EvalResult.Value() != true {
				return false
			}
		}
		return true
	}
	return evaluate(p.MatchConditions) && !evaluate(p.Validations)
}

// Each identity of a node may write its own ConfigMap, and no other; the policy ignores all but agents and nodes.
func TestConfigMapOfTheOwnNode(t *testing.T) {
	policies := map[string]policyExpressions{}
	for _, o := range objects(t, template(t, "--set", "rights.nodeIdentity=true")) {
		if o.Kind == "ValidatingAdmissionPolicy" {
			var p policyExpressions
			if err := o.Spec.Decode(&p); err != nil {
				t.Fatal(err)
			}
			policies[o.Metadata.Name] = p
		}
	}
	agent := &user.DefaultInfo{Name: "system:serviceaccount:nodeagent:nodeagent", Groups: []string{"system:authenticated"},
		Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"a"}}}
	unbound := &user.DefaultInfo{Name: agent.Name}
	node := &user.DefaultInfo{Name: "system:node:a", Groups: []string{"system:nodes"}}
	impostor := &user.DefaultInfo{Name: "a", Groups: []string{"system:nodes"}}
	admin := &user.DefaultInfo{Name: "admin", Groups: []string{"system:masters"}}
	const asPod, asNode = "nodeagent-own-objects", "nodeagent-node-identity"
	for _, test := range []struct {
		name, policy string
		who          user.Info
		object       string
		label        string
		operation    admission.Operation
		refused      bool
	}{
		{"own, new", asPod, agent, "node-a", "a", admission.Create, false},
		{"own", asPod, agent, "node-a", "a", admission.Update, false},
		{"own without a label", asPod, agent, "node-a", "", admission.Update, false},
		{"own that claims to be another's", asPod, agent, "node-a", "b", admission.Update, true},
		{"another's", asPod, agent, "node-b", "b", admission.Update, true},
		{"another's without a label", asPod, agent, "node-b", "", admission.Create, true},
		{"own, deleted", asPod, agent, "node-a", "a", admission.Delete, false},
		{"another's, deleted", asPod, agent, "node-b", "a", admission.Delete, true},
		{"all deleted", asPod, agent, "", "a", admission.Delete, true},
		{"token without a node", asPod, unbound, "node-", "", admission.Create, true},
		{"other user", asPod, admin, "node-b", "b", admission.Delete, false},
		{"node, own, new", asNode, node, "node-a", "a", admission.Create, false},
		{"node, own", asNode, node, "node-a", "a", admission.Update, false},
		{"node, own that claims to be another's", asNode, node, "node-a", "b", admission.Create, true},
		{"node, another's", asNode, node, "node-b", "b", admission.Create, true},
		{"node, another's without a label", asNode, node, "node-b", "", admission.Create, true},
		{"node, name within the name", asNode, node, "node-a.b", "a", admission.Update, true},
		{"node, own, deleted", asNode, node, "node-a", "a", admission.Delete, false},
		{"node, another's, deleted", asNode, node, "node-b", "a", admission.Delete, true},
		{"node, all deleted", asNode, node, "", "a", admission.Delete, true},
		{"in the group alone", asNode, impostor, "node-a", "a", admission.Create, true},
		{"in the group alone, no name", asNode, impostor, "node-", "", admission.Create, true},
		{"agent's pod, at the other policy", asNode, agent, "node-b", "b", admission.Create, false},
		{"admin", asNode, admin, "node-b", "b", admission.Delete, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "ConfigMap",
				"metadata": map[string]any{"name": test.object, "namespace": "nodeagent"}}}
			if test.label != "" {
				object.SetLabels(map[string]string{"nodeagent.github.io/node": test.label})
			}
			record := func(now, old *unstructured.Unstructured) admission.Attributes {
				kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
				resource := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
				switch test.operation {
				case admission.Create:
					return admission.NewAttributesRecord(now, nil, kind, "nodeagent", test.object, resource, "",
						test.operation, nil, false, test.who)
				case admission.Delete:
					return admission.NewAttributesRecord(nil, old, kind, "nodeagent", test.object, resource, "",
						test.operation, nil, false, test.who)
				}
				return admission.NewAttributesRecord(now, old, kind, "nodeagent", test.object, resource, "",
					test.operation, nil, false, test.who)
			}
			if got := policies[test.policy].refuses(t, record(object, object)); got != test.refused {
				t.Errorf("refused: %v, want %v", got, test.refused)
			}
		})
	}
}
