// Package answerkey plays reasons on a real control plane, with kwok as the kubelets, and compares the verdicts of
// tracecenter with those of the referee, and its reasons with the answer key.
package answerkey

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/nodeagent/nodeagent/test/apiserver"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

var (
	withAPIServer = flag.Bool("apiserver", false, "run the tests on a real kube-apiserver, which labctl has built")
	long          = flag.Bool("long", false, "run the tests that take minutes too")
	rate          = flag.Int("rate", 50, "pods created each second by the long tests")
)

const root = "../../.."

// policy logs all that the referee reads.
const policy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: RequestResponse, verbs: [create, update, patch, delete, deletecollection], resources: [{group: "", resources: [pods, pods/status, pods/resize, nodes, nodes/status]}]}
- {level: Request, verbs: [create, patch], resources: [{group: "", resources: [events, pods/binding, pods/eviction]}]}
- level: None
`

// theater is a control plane, kwok and a tracecenter.
type theater struct {
	t              *testing.T
	ctx            context.Context //nolint:containedctx // the test's
	client         *http.Client
	server         *apiserver.Server
	url            string
	dir, on, audit string
	scheduler      *exec.Cmd
	trace          *exec.Cmd
	kubeconfig     string // of tracecenter

	mu      sync.Mutex           // guards the fields below
	owners  map[string]string    // UIDs of owners whose pods are refused, by namespace and name
	created map[string]time.Time // pods, by name
}

func (s *theater) check(err error) {
	s.t.Helper()
	if err != nil && s.ctx.Err() == nil {
		s.t.Error(err)
	}
}

func (s *theater) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func (s *theater) await(what string, holds func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(75 * time.Second)
	for !holds() {
		if time.Now().After(deadline) || s.ctx.Err() != nil || s.t.Failed() { // one failure makes others: the first one counts
			s.t.Errorf("never %s", what)
			return
		}
		s.sleep(200 * time.Millisecond)
	}
}

// newEtcd returns the etcd of test/etcd, which serves streamed lists.
func newEtcd(t *testing.T) string {
	t.Helper()
	built, _ := filepath.Glob(filepath.Join(root, ".cache/etcd-v*/etcd")) // the pattern is well-formed
	need.Has(t, len(built) > 0, "etcd: make etcd")
	return built[len(built)-1]
}

// open opens a theater with a running tracecenter.
func open(t *testing.T, etcd string, flags ...string) *theater {
	t.Helper()
	s := prepare(t, etcd, policy, flags...)
	s.serve()
	return s
}

// build builds tracecenter and the referee.
func (s *theater) build() {
	s.t.Helper()
	for name, pkg := range map[string]string{"tracecenter": "./cmd/tracecenter", "referee": "./test/trace/referee"} {
		build := exec.CommandContext(s.ctx, "go", "build", "-C", root, "-o", filepath.Join(s.dir, name), pkg)
		if out, err := build.CombinedOutput(); err != nil {
			s.t.Fatalf("%v: %s", err, out)
		}
	}
}

func prepare(t *testing.T, etcd, policy string, flags ...string) *theater {
	t.Helper()
	s := &theater{t: t, ctx: t.Context(), dir: t.TempDir(), on: loopback.Free(t), owners: map[string]string{},
		created: map[string]time.Time{}}
	s.build()
	built, _ := filepath.Glob(filepath.Join(root, ".cache/kwok-v*/kwok")) // the pattern is well-formed
	need.Has(t, len(built) > 0, "kwok: make kwok")
	s.audit = filepath.Join(s.dir, "audit.log")
	policyFile := filepath.Join(s.dir, "policy.yaml")
	if err := os.WriteFile(policyFile, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	server := apiserver.StartWith(t, etcd, root, append(flags, "--audit-policy-file", policyFile, "--audit-log-path", s.audit,
		"--audit-log-maxsize=10000", "--audit-log-mode=blocking", "--allow-privileged")...) // in one file of at most 10 GB
	patient := []string{"--leader-elect-lease-duration=5m", "--leader-elect-renew-deadline=4m"} // a busy machine must not end them
	s.scheduler = server.Run("kube-scheduler", patient...)
	server.Run("kube-controller-manager", append(patient,
		"--controllers=replicaset-controller,statefulset-controller,daemonset-controller,resourcequota-controller,taint-eviction-controller")...)
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig("player", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	if s.client, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	s.server, s.url = server, server.URL
	s.stage(built[len(built)-1], server.Kubeconfig("kwok", "admin"), server.Kubeconfig("trace", "admin"))
	return s
}

// The content types of requests.
const (
	plain     = "application/json"
	merge     = "application/merge-patch+json"
	strategic = "application/strategic-merge-patch+json"
	podsPath  = "/api/v1/namespaces/" + namespace + "/pods"
)

// do makes a request, and decodes the answer unless into is nil.
func (s *theater) do(method, path, kind string, body []byte, into any) error {
	request, err := http.NewRequestWithContext(s.ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", kind)
	response, err := s.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %d %s", method, path, response.StatusCode, answer)
	}
	if err == nil && into != nil {
		err = json.Unmarshal(answer, into)
	}
	return err
}

func (s *theater) call(method, path string, body, into any) {
	s.t.Helper()
	text, err := json.Marshal(body)
	if body == nil {
		text = nil
	}
	s.check(err)
	s.check(s.do(method, path, plain, text, into))
}

// stage creates namespace and nodes, and starts kwok.
func (s *theater) stage(kwok, kubeconfig, traceConfig string) {
	s.t.Helper()
	s.call(http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, nil)
	s.run("kwok", kwok, "--kubeconfig", kubeconfig, "--config", "stages.yaml", "--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake",
		"--node-lease-duration-seconds=0")
	for _, name := range []string{"node-a", "node-ahead", "node-taint", "node-b", "node-lost"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name != "node-b" && name != "node-lost" {
			n.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
		}
		if name == "node-a" {
			n.Labels = map[string]string{"play": "yes"}
		}
		s.call(http.MethodPost, "/api/v1/nodes", n, n)
		if name == "node-b" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1, 0)}}
			s.call(http.MethodPut, "/api/v1/nodes/"+name+"/status", n, nil)
		}
	}
	s.kubeconfig = traceConfig
}

// serve starts tracecenter, and waits until it has listed the pods.
func (s *theater) serve() {
	s.t.Helper()
	s.trace = s.run("tracecenter", filepath.Join(s.dir, "tracecenter"), "serve", "--kubeconfig", s.kubeconfig, "--dir", filepath.Join(s.dir, "data"),
		"--listen", s.on, "--promised", promised.String())
	s.await("ready", func() bool {
		r, err := http.Get("http://" + s.on + "/readyz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
}

func (s *theater) run(name, program string, args ...string) *exec.Cmd {
	s.t.Helper()
	var log bytes.Buffer
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := log.Bytes(); s.t.Failed() {
			s.t.Logf("%s: %s", name, text[max(0, len(text)-3000):])
		}
	})
	return cmd
}

// made returns when a pod was created.
func (s *theater) made(p *corev1.Pod) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.created[p.Name]
}

// places are those for plays that begin. A play gives its place back when kwok has shown its first status: on a busy
// machine kwok is slow, and a late status would be another play.
type places chan struct{}

func (l places) take()  { l <- struct{}{} }
func (l places) leave() { <-l }

// perform plays a pod in a place that it has taken, and returns when its part is over.
func (s *theater) perform(p *play, on places) {
	pod := p.object()
	left := sync.OnceFunc(on.leave)
	defer left()
	if s.call(http.MethodPost, podsPath, pod, pod); pod.UID == "" {
		return
	}
	s.mu.Lock()
	s.created[pod.Name] = time.Now()
	s.mu.Unlock()
	for _, e := range p.events {
		s.say(pod, e)
	}
	switch {
	case p.from == "nominated":
		s.patch(pod, "status", merge, object{"status": object{"nominatedNodeName": "node-b"}})
	case p.from != "":
		s.patch(pod, "status", strategic, object{"status": object{"conditions": []any{condition("PodScheduled", "False", p.from, p.schedule)}}})
	}
	if pod.Spec.NodeName != "" && len(p.steps) > 0 && p.steps[0].after < time.Second {
		s.awaitKwok(pod)
	}
	left()
	if p.bindIn > 0 {
		s.sleep(p.bindIn)
		s.bind(pod)
	}
	if p.then != nil {
		p.then(s, pod)
	}
}

// awaitKwok waits for kwok's first status of a pod, at most for the promised time.
func (s *theater) awaitKwok(pod *corev1.Pod) {
	for end := time.Now().Add(promised); time.Now().Before(end) && s.ctx.Err() == nil; s.sleep(300 * time.Millisecond) {
		var now corev1.Pod
		if err := s.do(http.MethodGet, podsPath+"/"+pod.Name, plain, nil, &now); err != nil || now.Status.StartTime != nil {
			return
		}
	}
}

func TestRealAPIServerAnswerKey(t *testing.T) {
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	open(t, newEtcd(t)).answerKey()
}

// Debian's etcd has no streamed lists.
func TestRealAPIServerOldEtcd(t *testing.T) {
	need.Flag(t, *long && *withAPIServer, "-apiserver -long: the answer key with an old etcd")
	open(t, need.Program(t, "etcd"), "--feature-gates=WatchList=false").answerKey() // or kwok would try them again and again
}

func (s *theater) answerKey() {
	s.t.Helper()
	var parts, upgrades sync.WaitGroup
	all := plays()
	s.rollouts(&upgrades)
	refusals := s.refuse(&parts)
	begin := make(places, 16)
	for _, p := range all {
		begin.take()
		parts.Go(func() { s.perform(p, begin) })
	}
	parts.Go(s.taint)
	upgrades.Wait()
	all = append(all, s.withoutScheduler(&parts)...)
	parts.Wait()
	s.compare(append(all, refusals...))
}
