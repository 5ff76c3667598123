package daemonset

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	otherNode = "other-node"
	denied    = "ValidatingAdmissionPolicy" // in the refusals of the policies, not in those of RBAC

	strategic = "application/strategic-merge-patch+json"
	merge     = "application/merge-patch+json"
	apply     = "application/apply-patch+yaml"
	create    = "application/json"
)

// identity calls the apiserver with one token.
type identity struct {
	client *http.Client
	server string
	token  string
}

func (c *cluster) identity(t *testing.T, token string) identity {
	t.Helper()
	ca, err := os.ReadFile(c.Paths.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	t.Cleanup(transport.CloseIdleConnections)
	return identity{&http.Client{Transport: transport, Timeout: 10 * time.Second}, c.Server(), strings.TrimSpace(token)}
}

// send makes one request and returns the status code and the body.
func (i identity) send(ctx context.Context, method, path, contentType, body string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, method, i.server+path, bytes.NewReader([]byte(body)))
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+i.token)
	request.Header.Set("Content-Type", contentType)
	response, err := i.client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	return response.StatusCode, string(answer), err
}

// podToken is the token that kubelet gave to the agent's pod, read through the descriptor that the agent has kept.
func podToken(t *testing.T) string {
	t.Helper()
	pid := agentPID(t)
	command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		t.Fatal(err)
	}
	for argument := range strings.SplitSeq(string(command), "\x00") {
		if dir, ok := strings.CutPrefix(argument, "--service-account=/proc/self/"); ok {
			token, err := os.ReadFile(filepath.Join("/proc", fmt.Sprint(pid), dir, "token"))
			if err != nil {
				t.Fatal(err)
			}
			return string(token)
		}
	}
	t.Fatalf("no token in %q", command)
	return ""
}

func conditionPatch(name string) string {
	return fmt.Sprintf(`{"status":{"conditions":[{"type":%q,"status":"False","reason":"Test","message":"of a test"}]}}`,
		name)
}

func eventOf(kind, name, namespace, component string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Event","metadata":{"generateName":"test-","namespace":"default"},
"involvedObject":{"apiVersion":"v1","kind":%q,"name":%q,"namespace":%q,"uid":%q},"reason":"Test","message":"of a test","type":"Normal",
"source":{"component":%q,"host":"lab-node"}}`, kind, name, namespace, name, component)
}

const (
	leaseBody     = `{"apiVersion":"coordination.k8s.io/v1","kind":"Lease","metadata":{"name":%q},"spec":{"holderIdentity":"test"}}`
	labelBody     = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"app.kubernetes.io/name":"other"}}}`
	configMapBody = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"config.yaml":"{}"}}`
)

// request is one request with the token of the lab node's agent.
type request struct {
	what, method, path, contentType, body string
	want                                  string // empty: it is allowed; otherwise a part of the refusal
}

func requests(node, configuration string) []request {
	const (
		nodes      = "/api/v1/nodes/"
		leases     = "/apis/coordination.k8s.io/v1/namespaces/nodeagent/leases/"
		configMaps = "/api/v1/namespaces/nodeagent/configmaps/"
		events     = "/api/v1/namespaces/default/events"
		manager    = "?fieldManager=nodeagent&force=true"
	)
	status := func(of, body, want string) request {
		return request{"status of " + of + " " + body, "PATCH", nodes + of + "/status", strategic, body, want}
	}
	applied := func(path, name, body, want string) request {
		return request{"apply " + path + name, "PATCH", path + name + manager, apply, fmt.Sprintf(body, name), want}
	}
	taint := func(of, key, effect, want string) request {
		return request{"taint " + of + " " + key + ":" + effect, "PATCH", nodes + of, merge,
			fmt.Sprintf(`{"spec":{"taints":[{"key":%q,"value":"Test","effect":%q}]}}`, key, effect), want}
	}
	return []request{
		status(node, conditionPatch("NodeagentTest"), ""),
		status(otherNode, conditionPatch("NodeagentTest"), denied),
		status(node, conditionPatch("Ready"), denied),
		status(node, `{"status":{"conditions":[{"type":"DiskPressure","$patch":"delete"}]}}`, denied),
		status(node, `{"status":{"capacity":{"example.com/gpu":"8"}}}`, denied),
		status(node, `{"status":{"volumesAttached":[{"name":"x","devicePath":"/dev/x"}]}}`, denied),
		status(node, `{"status":{"addresses":[{"type":"ExternalIP","address":"192.0.2.1"}]}}`, denied),
		status(node, `{"metadata":{"labels":{"node-role.kubernetes.io/control-plane":""}}}`, denied),
		status(node, `{"metadata":{"annotations":{"test":"test"}}}`, denied),
		// rights.taint lets the agent patch Nodes; the policy permits only its own taint.
		{"spec of the own node", "PATCH", nodes + node, strategic, `{"spec":{"unschedulable":true}}`, denied},
		{"label of the own node", "PATCH", nodes + node, strategic, `{"metadata":{"labels":{"test":"test"}}}`, denied},
		taint(node, "nodeagent.github.io/unhealthy", "NoSchedule", ""),
		taint(node, "nodeagent.github.io/unhealthy", "PreferNoSchedule", ""),
		taint(node, "nodeagent.github.io/unhealthy", "NoExecute", denied),
		taint(node, "example.com/other", "NoSchedule", denied),
		{"no taint any more", "PATCH", nodes + node, merge, `{"spec":{"taints":null}}`, ""},
		taint(otherNode, "nodeagent.github.io/unhealthy", "NoSchedule", denied),
		{"the taint of another", "PATCH", nodes + otherNode, merge, `{"spec":{"taints":[]}}`, denied},
		{"delete the other node", "DELETE", nodes + otherNode, create, ``, "cannot delete resource"},

		applied(leases, "node-"+node, leaseBody, ""),
		applied(leases, "node-"+node, leaseBody, ""), // again: it exists now
		applied(leases, "node-"+otherNode, leaseBody, denied),
		applied(leases, "anything", leaseBody, denied),
		applied(configMaps, "node-"+node, configMapBody, ""),
		applied(configMaps, "node-"+node, configMapBody, ""),
		applied(configMaps, "node-"+otherNode, configMapBody, denied),
		applied(configMaps, configuration, labelBody, denied), // of all agents; its data are immutable anyway
		{"ConfigMap of any name", "POST", strings.TrimSuffix(configMaps, "/"), create,
			`{"metadata":{"generateName":"node-"}}`, denied},
		{"ConfigMap elsewhere", "POST", "/api/v1/namespaces/default/configmaps", create,
			fmt.Sprintf(configMapBody, "node-"+node), "cannot create resource"},
		{"Lease of kubelet", "PATCH", "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/" +
			node + manager, apply, fmt.Sprintf(leaseBody, node), "cannot patch resource"},

		{"event about the own node", "POST", events, create, eventOf("Node", node, "", "nodeagent"), ""},
		{"event about the other node", "POST", events, create, eventOf("Node", otherNode, "", "nodeagent"), denied},
		{"event about a pod", "POST", events, create, eventOf("Pod", "any", "default", "nodeagent"), denied},
		{"event in kubelet's name", "POST", events, create, eventOf("Node", node, "", "kubelet"), denied},

		{"pods of the cluster", "GET", "/api/v1/pods", create, ``, "cannot list resource"},
		{"pods of the own node", "GET", "/api/v1/pods?fieldSelector=spec.nodeName%3D" + node, create, ``,
			"cannot list resource"},
		{"a pod", "GET", "/api/v1/namespaces/kube-system/pods/any", create, ``, "cannot get resource"},
		{"kubelet of the own node", "GET", nodes + node + "/proxy/pods", create, ``, "cannot get resource"},
		{"secrets", "GET", "/api/v1/namespaces/nodeagent/secrets", create, ``, "cannot list resource"},
		{"a token of its own making", "POST", "/api/v1/namespaces/nodeagent/serviceaccounts/nodeagent/token", create,
			`{"spec":{}}`, "cannot create resource"},
	}
}

// statusSamples has a value for each field of a Node's status except its conditions, that no Node of the lab has.
var statusSamples = map[string]string{
	"capacity":         `{"example.com/gpu":"8"}`,
	"allocatable":      `{"example.com/gpu":"8"}`,
	"phase":            `"Terminated"`,
	"addresses":        `[{"type":"ExternalIP","address":"192.0.2.1"}]`,
	"daemonEndpoints":  `{"kubeletEndpoint":{"Port":1}}`,
	"nodeInfo":         `{"bootID":"x"}`,
	"images":           `[{"names":["x"],"sizeBytes":1}]`,
	"volumesInUse":     `["x"]`,
	"volumesAttached":  `[{"name":"x","devicePath":"/dev/x"}]`,
	"config":           `{"error":"x"}`,
	"runtimeHandlers":  `[{"name":"x"}]`,
	"features":         `{"supplementalGroupsPolicy":false}`,
	"declaredFeatures": `["NodeagentTest"]`,
}

// TestEveryFieldOfTheStatusIsTried fails if a new Kubernetes adds a field: the lab then tries it, once it has a sample
// here.
func TestEveryFieldOfTheStatusIsTried(t *testing.T) {
	for field := range reflect.TypeFor[corev1.NodeStatus]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if _, tried := statusSamples[name]; !tried && name != "conditions" {
			t.Errorf("status.%s is not tried with the token of an agent", name)
		}
	}
}

// testOwnNodeOnly shows with real tokens that an agent can only write the objects of its own node.
func testOwnNodeOnly(t *testing.T, c *cluster) {
	if err := c.KubectlApply(t.Context(), `{"apiVersion":"v1","kind":"Node","metadata":{"name":"`+otherNode+
		`"}}`); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.tidyTokens(t) })
	own := c.identity(t, podToken(t))
	configuration := strings.TrimPrefix(strings.TrimSpace(c.kubectl(t, "get", "configmap", "-n", namespace, "-l",
		"app.kubernetes.io/name=nodeagent", "-o", "name")), "configmap/")
	ask := func(t *testing.T, as identity, r request, want string) {
		t.Helper()
		code, body, err := as.send(t.Context(), r.method, r.path, r.contentType, r.body)
		switch {
		case err != nil:
			t.Error(err)
		case want == "" && code/100 != 2:
			t.Errorf("%s: %d, want it allowed: %s", r.what, code, body)
		case want != "" && (code != http.StatusForbidden || !strings.Contains(body, want)):
			t.Errorf("%s: %d, want a refusal with %q: %s", r.what, code, want, body)
		}
	}
	for _, r := range requests(c.NodeName, configuration) {
		ask(t, own, r, r.want)
	}
	for field, value := range statusSamples {
		path := "/api/v1/nodes/" + c.NodeName
		status := func() string {
			return c.kubectl(t, "get", "node", c.NodeName, "-o", "jsonpath={.status."+field+"}")
		}
		before := status()
		code, body, err := own.send(t.Context(), "PATCH", path+"/status", strategic,
			fmt.Sprintf(`{"status":{%q:%s}}`, field, value))
		// A field behind a disabled feature gate is dropped before the policy sees it: then the status does not change.
		if err != nil || code/100 == 2 && status() != before || code/100 != 2 && !strings.Contains(body, denied) {
			t.Errorf("status.%s: %d, %v: %s", field, code, err, body)
		}
	}
	// The same with the token of the other node: requests that were refused there are allowed here, and the other way
	// round.
	other := c.identity(t, c.kubectl(t, "create", "token", "nodeagent", "-n", namespace, "--bound-object-kind", "Node",
		"--bound-object-name", otherNode))
	unbound := c.identity(t, c.kubectl(t, "create", "token", "nodeagent", "-n", namespace))
	for _, node := range []string{c.NodeName, otherNode} {
		r := request{"status of " + node, "PATCH", "/api/v1/nodes/" + node + "/status", strategic,
			conditionPatch("NodeagentTest"), ""}
		want := denied
		if node == otherNode {
			want = ""
		}
		ask(t, other, r, want)
		ask(t, unbound, r, denied)
	}
}

// tidyTokens removes the objects that the tokens were allowed to write.
func (c *cluster) tidyTokens(t *testing.T) {
	c.kubectl(t, "delete", "node", otherNode, "--ignore-not-found")
	c.kubectl(t, "delete", "-n", namespace, "lease/node-"+c.NodeName, "configmap/node-"+c.NodeName,
		"--ignore-not-found")
	c.kubectl(t, "patch", "node", c.NodeName, "--subresource=status", "--type=strategic", "-p",
		`{"status":{"conditions":[{"type":"NodeagentTest","$patch":"delete"}]}}`)
	c.kubectl(t, "delete", "events", "-n", "default", "--field-selector=reason=Test", "--ignore-not-found")
}
