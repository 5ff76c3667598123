package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/api"
	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

var withAPIServer = flag.Bool("apiserver", false, "run the tests on a real kube-apiserver, which labctl has built")

// cluster is a real apiserver, and a tracecenter with a short promised time.
type cluster struct {
	*apiserver.Server
	t          *testing.T
	dir, on    string
	kubeconfig string
}

const traceRole = `{"kind":"ClusterRole","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"trace"},"rules":[
 {"apiGroups":[""],"resources":["pods","nodes","events"],"verbs":["list","watch"]},
 {"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list","watch"]},
 {"apiGroups":["discovery.k8s.io"],"resources":["endpointslices"],"verbs":["list"]},
 {"nonResourceURLs":["/readyz","/readyz/etcd"],"verbs":["get"]},
 {"apiGroups":["authentication.k8s.io"],"resources":["tokenreviews"],"verbs":["create"]},
 {"apiGroups":["authorization.k8s.io"],"resources":["subjectaccessreviews"],"verbs":["create"]}]}`

const traceBinding = `{"kind":"ClusterRoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"trace"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"trace"},
 "subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"User","name":"agent"}]}`

// start runs the program until the returned function is called.
func (c *cluster) start() (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--kubeconfig", c.kubeconfig, "--dir", c.dir, "--listen", c.on, "--promised", "5s"})
	}()
	c.await("ready", func() bool {
		r, err := http.Get("http://" + c.on + "/readyz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
	return func() {
		cancel()
		if code := <-ended; code != exitFine {
			c.t.Errorf("serve ended with %d", code)
		}
	}
}

func (c *cluster) await(what string, true func() bool) {
	c.t.Helper()
	deadline, ticker := time.After(2*time.Minute), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	for !true() {
		select {
		case <-deadline:
			c.t.Fatalf("never %s", what)
		case <-ticker.C:
		}
	}
}

func (c *cluster) pod(name string) {
	c.Create("/api/v1/namespaces/default/pods", fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":%q,"annotations":{"a":"hunter2"}},
	 "spec":{"terminationGracePeriodSeconds":0,"containers":[{"name":"c","image":"a:1","args":["hunter2"],"env":[{"name":"P","value":"hunter2"}]}]}}`, name), nil)
}

func (c *cluster) bind(name string) {
	c.Create("/api/v1/namespaces/default/pods/"+name+"/binding", fmt.Sprintf(
		`{"kind":"Binding","apiVersion":"v1","metadata":{"name":%q},"target":{"kind":"Node","name":"node-a"}}`, name), nil)
}

// status replaces the status of a pod.
func (c *cluster) status(name, status string) {
	c.t.Helper()
	path := "/api/v1/namespaces/default/pods/" + name
	_, current, err := c.Do(http.MethodGet, path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	var object map[string]json.RawMessage
	if err := json.Unmarshal(current, &object); err != nil {
		c.t.Fatal(err)
	}
	object["status"] = json.RawMessage(status)
	body, err := json.Marshal(object)
	if err != nil {
		c.t.Fatal(err)
	}
	if code, answer, err := c.Do(http.MethodPut, path+"/status", body); err != nil || code != http.StatusOK {
		c.t.Fatalf("%v %d %s", err, code, answer)
	}
}

// acts returns "act outcome reason" for a pod, newest first.
func (c *cluster) acts(name string) (all []string) {
	code, body := ask(c.t, c.dir, c.on, "/v1/pods/default/"+name, c.on)
	var pod api.Pod
	if code != http.StatusOK || json.Unmarshal([]byte(body), &pod) != nil {
		return nil
	}
	for _, a := range pod.Acts {
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %s %s", a.Act, a.Outcome, a.Reason)))
	}
	return all
}

func (c *cluster) expect(name, want string) {
	c.t.Helper()
	var got []string
	for deadline := time.Now().Add(time.Minute); ; {
		if got = c.acts(name); strings.Join(got, ", ") == want {
			return
		}
		if time.Now().After(deadline) {
			c.t.Errorf("%s: %v, want %s", name, got, want)
			return
		}
		<-time.After(50 * time.Millisecond)
	}
}

const readyStatus = `{"phase":"Running","startTime":"2026-01-01T00:00:00Z","conditions":[{"type":"PodScheduled","status":"True"},
 {"type":"Initialized","status":"True"},{"type":"ContainersReady","status":"True"},{"type":"Ready","status":"True"}],
 "containerStatuses":[{"name":"c","ready":true,"image":"a:1","imageID":"","restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}`

func TestRealAPIServer(t *testing.T) {
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	c := &cluster{Server: apiserver.Start(t, "../.."), t: t, dir: filepath.Join(t.TempDir(), "data"), on: loopback.Free(t)}
	c.kubeconfig = c.Kubeconfig("trace", "agent")
	c.Create("/apis/rbac.authorization.k8s.io/v1/clusterroles", traceRole, nil)
	c.Create("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", traceBinding, nil)
	c.Create("/api/v1/nodes", `{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-a"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, nil)
	c.pod("before") // does not count
	stop := c.start()

	for _, name := range []string{"good", "pull", "full", "gone", "overcome"} {
		c.pod(name)
	}
	c.bind("good")
	c.status("good", readyStatus)
	c.bind("pull")
	waiting := `{"phase":"Pending","startTime":"2026-01-01T00:00:00Z","containerStatuses":[{"name":"c","ready":false,"image":"a:1","imageID":"","restartCount":0,
	 "state":{"waiting":{"reason":"ImagePullBackOff","message":"Back-off pulling image \"a:1\": ErrImagePull: failed to do request: dial tcp 10.0.0.1:443: connect: connection refused"}}}]}`
	c.status("pull", waiting)
	c.status("full", `{"phase":"Pending","conditions":[{"type":"PodScheduled","status":"False","reason":"Unschedulable","message":"0/1 nodes are available: 1 Insufficient cpu."}]}`)
	c.Delete("/api/v1/namespaces/default/pods/gone")
	c.bind("overcome")
	c.status("overcome", waiting)
	c.status("overcome", readyStatus)

	c.expect("good", "creation delivered")
	c.expect("overcome", "creation delivered")
	c.expect("gone", "deletion delivered, creation excluded")
	c.expect("pull", "creation missed RegistryUnavailable")
	c.expect("full", "creation missed CapacityExhausted")
	if got := c.acts("before"); len(got) != 0 {
		t.Errorf("before: %v", got)
	}

	c.pod("across") // a restart
	c.expect("across", "creation")
	stop()
	stop = c.start()
	defer func() { stop() }()
	c.expect("across", "creation missed SchedulerSlow")
	c.expect("full", "creation missed CapacityExhausted")
	c.expect("good", "creation delivered")
	c.printed()
	c.readers()
	c.tenants()
}

const readerRole = `{"kind":"Role","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"reader"},
 "rules":[{"apiGroups":[""],"resources":["pods"],"verbs":["get"]}]}`

const readerBinding = `{"kind":"RoleBinding","apiVersion":"rbac.authorization.k8s.io/v1","metadata":{"name":"reader"},
 "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"reader"},
 "subjects":[{"kind":"ServiceAccount","name":"dev","namespace":"team"}]}`

// readers checks the rights of a user who may get the pods of one namespace, with the user's own token: by request and by
// page, no pod of another namespace can be read, and whether it exists is not told.
func (c *cluster) readers() {
	c.t.Helper()
	c.Create("/api/v1/namespaces", `{"kind":"Namespace","apiVersion":"v1","metadata":{"name":"team"}}`, nil)
	c.Create("/api/v1/namespaces/team/serviceaccounts", `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"dev"}}`, nil)
	var request struct{ Status struct{ Token string } }
	c.Create("/api/v1/namespaces/team/serviceaccounts/dev/token", `{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","spec":{}}`, &request)
	c.Create("/apis/rbac.authorization.k8s.io/v1/namespaces/team/roles", readerRole, nil)
	c.Create("/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings", readerBinding, nil)
	dir := c.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte(request.Status.Token), 0o600); err != nil {
		c.t.Fatal(err)
	}
	code, body := ask(c.t, c.dir, c.on, "/v1/pods/default/pull", c.on)
	var pull api.Pod
	if err := json.Unmarshal([]byte(body), &pull); err != nil || code != http.StatusOK {
		c.t.Fatalf("%d %s", code, body)
	}
	for path, want := range map[string]int{"/v1/slis?namespace=team": 200, "/v1/failures?namespace=team": 200, "/v1/terminating?namespace=team": 200,
		"/v1/pods/team/none": 404, "/v1/pods/" + pull.Acts[0].UID: 404, "/v1/pods/no-such-uid": 404, "/v1/slis": 403, "/v1/failures": 403,
		"/v1/terminating": 403, "/v1/slis?namespace=default": 403, "/v1/pods/default/pull": 403, "/v1/pods/default/none": 403, "/metrics": 403,
		"/v1/components": 403} {
		if code, body := ask(c.t, dir, c.on, path, c.on); code != want || strings.Contains(body, "pull") && code == http.StatusOK {
			c.t.Errorf("%s: %d, want %d: %s", path, code, want, body)
		}
	}
	c.page(dir, pull.Acts[0].UID)
}

// page signs the user in, and opens the pages.
func (c *cluster) page(dir, uid string) {
	c.t.Helper()
	var login bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"login", "--server", "http://" + c.on, "--token-file", filepath.Join(dir, "token")})
	root.SetOut(&login)
	if err := root.ExecuteContext(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
	_, code, _ := strings.Cut(login.String(), "code: ")
	code, _, _ = strings.Cut(code, " ")
	jar, err := cookiejar.New(nil)
	if err != nil {
		c.t.Fatal(err)
	}
	browser := &http.Client{Jar: jar}
	open := func(path string, form url.Values) (int, string) {
		answer, err := browser.Get("http://" + c.on + path)
		if form != nil {
			answer, err = browser.PostForm("http://"+c.on+path, form)
		}
		if err != nil {
			c.t.Fatal(err)
		}
		defer answer.Body.Close()
		text, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(text)
	}
	if status, text := open("/login", url.Values{"code": {code}, "next": {"/"}}); status != http.StatusOK || !strings.Contains(text, "name one of yours") ||
		!strings.Contains(text, "system:serviceaccount:team:dev") {
		c.t.Errorf("%d %s", status, text)
	}
	for path, want := range map[string]int{"/failures": 403, "/failures?namespace=default": 403, "/failures?namespace=team": 200, "/terminating": 403, "/nodes": 403, "/v1/nodes?namespace=team": 403, "/v1/avoid?owner=u": 403,
		"/pods/default/pull": 404, "/pods/" + uid: 404, "/pods?pod=default/pull": 404, "/?namespace=default": 200, "/components": 200,
		"/v1/pods/" + uid: 404, "/v1/pods/default/pull": 403} {
		status, text := open(path, nil)
		if status != want || strings.Contains(text, "RegistryUnavailable") || strings.Contains(text, uid) && !strings.Contains(path, uid) {
			c.t.Errorf("%s: %d, want %d: %s", path, status, want, text)
		}
	}
}

// printed checks the commands' output, and that no file contains a secret.
func (c *cluster) printed() {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"pod", "default/pull", "--dir", c.dir})
	root.SetOut(&out)
	if err := root.ExecuteContext(c.t.Context()); err == nil {
		c.t.Error("a missed pod is a problem")
	}
	c.t.Log(out.String())
	for _, want := range []string{"RegistryUnavailable (system)", "to do:", "mount and sandbox", "###"} {
		if !strings.Contains(out.String(), want) {
			c.t.Errorf("no %q in %s", want, out.String())
		}
	}
	files, _ := filepath.Glob(filepath.Join(c.dir, "*")) // the pattern is well-formed
	for _, name := range files {
		if text, err := os.ReadFile(name); err != nil || bytes.Contains(text, []byte("hunter2")) {
			c.t.Errorf("%s: %v, or it has a secret", name, err)
		}
	}
}
