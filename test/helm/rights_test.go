package helm

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// policy is the scope of a ValidatingAdmissionPolicy.
type policy struct {
	FailurePolicy    string `yaml:"failurePolicy"`
	MatchConstraints struct {
		NamespaceSelector struct {
			MatchLabels map[string]string `yaml:"matchLabels"`
		} `yaml:"namespaceSelector"`
		ResourceRules []struct {
			APIGroups  []string `yaml:"apiGroups"`
			Resources  []string
			Operations []string
		} `yaml:"resourceRules"`
	} `yaml:"matchConstraints"`
}

// operations maps the verbs that write to the operations of admission.
var operations = map[string][]string{
	"create": {"CREATE"}, "update": {"UPDATE"}, "delete": {"DELETE"}, "deletecollection": {"DELETE"},
	"patch": {"CREATE", "UPDATE"}, // server-side apply creates
}

// For every write that a role allows the agent, a policy narrows it to its own node. There are no wildcards.
func TestEveryWriteIsNarrowed(t *testing.T) {
	everyWriteIsNarrowed(t)
	everyWriteIsNarrowed(t, "--set", "rights.nodeIdentity=true,rights.kubelet=true,rights.pods=true,rights.taint=true,rights.slots=true")
}

func everyWriteIsNarrowed(t *testing.T, args ...string) {
	t.Helper()
	all := objects(t, template(t, args...))
	var policies []policy
	for _, o := range all {
		if o.Kind != "ValidatingAdmissionPolicy" {
			continue
		}
		var p policy
		if err := o.Spec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		if p.FailurePolicy != "Fail" {
			t.Errorf("%s: failurePolicy %q", o.Metadata.Name, p.FailurePolicy)
		}
		policies = append(policies, p)
	}
	writes := 0
	for _, o := range all {
		if o.Kind != "Role" && o.Kind != "ClusterRole" {
			continue
		}
		for _, rule := range o.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					if verb == "*" || strings.Contains(resource, "*") {
						t.Errorf("%s %s: wildcard %s %s", o.Kind, o.Metadata.Name, verb, resource)
					}
					if slices.Contains([]string{"get", "list", "watch"}, verb) {
						continue
					}
					writes++
					for _, operation := range operations[verb] {
						if !narrowed(policies, o.Metadata.Namespace, rule.APIGroups[0], resource, operation) {
							t.Errorf("%s %s/%s lets the agent %s %s, and no policy covers %s", o.Kind,
								o.Metadata.Namespace, o.Metadata.Name, verb, resource, operation)
						}
					}
				}
			}
		}
	}
	if writes == 0 || len(policies) == 0 {
		t.Errorf("%d rules that allow writing, %d policies", writes, len(policies))
	}
}

// The fields of its Node that an agent may change are listed: the policy compares every other field, including those of
// later versions of Kubernetes.
func TestNodePolicyListsWhatMayChange(t *testing.T) {
	const (
		metadata = "[object, oldObject].all(o, o.metadata.all(k, k in ['managedFields', 'resourceVersion'] || " +
			"object.metadata[?k] == oldObject.metadata[?k]))"
		spec = "[object, oldObject].all(o, o.?spec.orValue({}).all(k, k == 'taints' || object.?spec[?k] == " +
			"oldObject.?spec[?k]))"
		status = "[object, oldObject].all(o, o.?status.orValue({}).all(k, k == 'conditions' || object.?status[?k] " +
			"== oldObject.?status[?k]))"
	)
	for _, o := range objects(t, template(t)) {
		if o.Kind != "ValidatingAdmissionPolicy" || o.Metadata.Name != "nodeagent-node" {
			continue
		}
		var p struct{ Validations []struct{ Expression string } }
		if err := o.Spec.Decode(&p); err != nil {
			t.Fatal(err)
		}
		var expressions []string
		for _, v := range p.Validations {
			expressions = append(expressions, strings.Join(strings.Fields(v.Expression), " "))
		}
		for _, want := range []string{metadata, spec, status} {
			if !slices.Contains(expressions, want) {
				t.Errorf("no validation is %s", want)
			}
		}
		return
	}
	t.Error("no policy nodeagent-node")
}

// By default no right reads anything about pods beyond the agent's own node: neither pods nor the API of
// every kubelet. Each wider right has a switch of its own.
func TestPodsOfTheClusterAreNotRead(t *testing.T) {
	wide := func(args ...string) []string {
		var found []string
		for _, o := range objects(t, template(t, args...)) {
			for _, rule := range o.Rules {
				for _, resource := range rule.Resources {
					base, sub, _ := strings.Cut(resource, "/")
					if base == "pods" || base == "nodes" && sub != "" && sub != "status" && sub != "metrics" ||
						strings.Contains(resource, "*") {
						found = append(found, o.Metadata.Name+" "+strings.Join(rule.Verbs, ",")+" "+resource)
					}
				}
			}
		}
		return found
	}
	for set, want := range map[string][]string{
		"":                    nil,
		"rights.kubelet=true": {"nodeagent-kubelet get nodes/pods"},
		"rights.pods=true":    {"nodeagent-pods get,list,watch pods"},

		"rights.nodeIdentity=true": nil,
	} {
		if diff := cmp.Diff(want, wide("--set", set)); diff != "" {
			t.Errorf("--set %q (-want +got):\n%s", set, diff)
		}
	}
}

func narrowed(policies []policy, namespace, group, resource, operation string) bool {
	for _, p := range policies {
		in := p.MatchConstraints.NamespaceSelector.MatchLabels["kubernetes.io/metadata.name"]
		if in != "" && in != namespace {
			continue
		}
		for _, r := range p.MatchConstraints.ResourceRules {
			if matches(r.APIGroups, group) && matches(r.Resources, resource) &&
				slices.Contains(r.Operations, operation) {
				return true
			}
		}
	}
	return false
}

func matches(patterns []string, name string) bool {
	base, _, sub := strings.Cut(name, "/")
	return slices.ContainsFunc(patterns, func(p string) bool {
		return p == name || p == "*/*" || p == "*" && !sub || sub && p == base+"/*"
	})
}

// The Leases of medik8s may be read only if the configuration asks for them, and only one by one.
func TestMaintenanceLeases(t *testing.T) {
	const asked = "config.fleet.medik8s=medik8s-leases"
	for args, want := range map[string]int{"rights.slots=true": 0, "rights.slots=true," + asked: 1, asked: 0} {
		found := 0
		for _, o := range objects(t, template(t, "--set", args)) {
			if o.Kind != "Role" || o.Metadata.Name != "nodeagent-maintenance" {
				continue
			}
			found++
			if len(o.Rules) != 1 || !slices.Equal(o.Rules[0].Verbs, []string{"get"}) ||
				!slices.Equal(o.Rules[0].Resources, []string{"leases"}) || o.Metadata.Namespace != "medik8s-leases" {
				t.Errorf("%s: %+v", args, o)
			}
		}
		if found != want {
			t.Errorf("%s: %d roles, want %d", args, found, want)
		}
	}
}
