package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
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
 {"apiGroups":["coordination.k8s.io"],"resources":["leases"],"verbs":["list","watch"]}]}`

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
	r, err := http.Get("http://" + c.on + "/v1/pods/default/" + name)
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	var pod api.Pod
	if r.StatusCode != http.StatusOK || json.NewDecoder(r.Body).Decode(&pod) != nil {
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
}

// printed checks the commands' output, and that no file contains a secret.
func (c *cluster) printed() {
	var out bytes.Buffer
	root := newRoot()
	root.SetArgs([]string{"pod", "default/pull", "--server", "http://" + c.on})
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
