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
	"slices"
	"strings"
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

var withAPIServer = flag.Bool("apiserver", false, "run the tests on a real kube-apiserver, which labctl has built")

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
	url            string
	dir, on, audit string
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
		if time.Now().After(deadline) || s.ctx.Err() != nil {
			s.t.Errorf("never %s", what)
			return
		}
		s.sleep(200 * time.Millisecond)
	}
}

func open(t *testing.T) *theater {
	t.Helper()
	s := &theater{t: t, ctx: t.Context(), dir: t.TempDir(), on: loopback.Free(t)}
	for name, pkg := range map[string]string{"tracecenter": "./cmd/tracecenter", "referee": "./test/trace/referee"} {
		build := exec.CommandContext(s.ctx, "go", "build", "-C", root, "-o", filepath.Join(s.dir, name), pkg)
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	built, _ := filepath.Glob(filepath.Join(root, ".cache/kwok-v*/kwok")) // the pattern is well-formed
	need.Has(t, len(built) > 0, "kwok: make kwok")
	s.audit = filepath.Join(s.dir, "audit.log")
	policyFile := filepath.Join(s.dir, "policy.yaml")
	if err := os.WriteFile(policyFile, []byte(policy), 0o600); err != nil {
		t.Fatal(err)
	}
	server := apiserver.Start(t, root, "--audit-policy-file", policyFile, "--audit-log-path", s.audit, "--audit-log-mode=blocking", "--allow-privileged",
		"--feature-gates=WatchList=false") // Debian's etcd cannot, and kwok would try it again and again
	server.Run("kube-scheduler")
	server.Run("kube-controller-manager", "--controllers=replicaset-controller,statefulset-controller,daemonset-controller,resourcequota-controller")
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig("player", "admin"))
	if err != nil {
		t.Fatal(err)
	}
	if s.client, err = rest.HTTPClientFor(config); err != nil {
		t.Fatal(err)
	}
	s.url = server.URL
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

// stage creates namespace and nodes, and starts kwok and tracecenter.
func (s *theater) stage(kwok, kubeconfig, traceConfig string) {
	s.t.Helper()
	s.call(http.MethodPost, "/api/v1/namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, nil)
	s.run("kwok", kwok, "--kubeconfig", kubeconfig, "--config", "stages.yaml", "--manage-nodes-with-annotation-selector", "kwok.x-k8s.io/node=fake",
		"--node-lease-duration-seconds=0")
	for _, name := range []string{"node-a", "node-b", "node-lost"} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if name == "node-a" {
			n.Annotations = map[string]string{"kwok.x-k8s.io/node": "fake"}
			n.Labels = map[string]string{"play": "yes"}
		}
		s.call(http.MethodPost, "/api/v1/nodes", n, n)
		if name == "node-b" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1, 0)}}
			s.call(http.MethodPut, "/api/v1/nodes/"+name+"/status", n, nil)
		}
	}
	s.run("tracecenter", filepath.Join(s.dir, "tracecenter"), "serve", "--kubeconfig", traceConfig, "--dir", filepath.Join(s.dir, "data"),
		"--listen", s.on, "--promised", promised.String())
	s.await("ready", func() bool {
		r, err := http.Get("http://" + s.on + "/readyz")
		if err == nil {
			r.Body.Close()
		}
		return err == nil && r.StatusCode == http.StatusOK
	})
}

func (s *theater) run(name, program string, args ...string) {
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
}

// perform plays a pod, and returns when its part is over.
func (s *theater) perform(p *play) {
	pod := p.object()
	if s.call(http.MethodPost, podsPath, pod, pod); pod.UID == "" {
		return
	}
	for _, e := range p.events {
		s.say(pod, e)
	}
	switch {
	case p.from == "nominated":
		s.patch(pod, "status", merge, object{"status": object{"nominatedNodeName": "node-b"}})
	case p.from != "":
		s.patch(pod, "status", strategic, object{"status": object{"conditions": []any{condition("PodScheduled", "False", p.from, p.schedule)}}})
	}
	if p.bindIn > 0 {
		s.sleep(p.bindIn)
		s.bind(pod)
	}
	if p.then != nil {
		p.then(s, pod)
	}
}

// act is a verdict, by tracecenter or the referee.
type act struct {
	UID, Act, Namespace, Name, Outcome, Verdict, Reason, Class, Why, Detail string
	Generation                                                              int64
	JudgedSeconds                                                           float64
}

// referee returns the verdicts of the audit log.
func (s *theater) referee() (all []act) {
	s.t.Helper()
	cmd := exec.CommandContext(s.ctx, filepath.Join(s.dir, "referee"), "-promised", promised.String(), s.audit)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		s.t.Fatalf("%v: %s", err, stderr.String())
	}
	for line := range bytes.Lines(out) {
		var a act
		if err := json.Unmarshal(line, &a); err != nil {
			s.t.Fatal(err)
		}
		all = append(all, a)
	}
	return all
}

// ask returns the acts of a pod.
func (s *theater) ask(uid string) []act {
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, "http://"+s.on+"/v1/pods/"+uid, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	token, err := os.ReadFile(filepath.Join(s.dir, "data", "token"))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	r, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil
	}
	defer r.Body.Close()
	var pod struct{ Acts []act }
	if r.StatusCode != http.StatusOK || json.NewDecoder(r.Body).Decode(&pod) != nil {
		return nil
	}
	return pod.Acts
}

// outcomes returns "act outcome", in alphabetical order.
func outcomes(acts []act) string {
	var all []string
	for _, a := range acts {
		outcome := a.Outcome + a.Verdict
		if outcome == "" {
			outcome = "open"
		}
		all = append(all, a.Act+" "+outcome)
	}
	slices.Sort(all)
	return strings.Join(all, ",")
}

func TestRealAPIServerAnswerKey(t *testing.T) {
	need.Flag(t, *withAPIServer, "-apiserver: runs the kube-apiserver that a lab has built")
	s := open(t)
	var parts sync.WaitGroup
	all := plays()
	limit := make(chan struct{}, 16) // pods created at the same time
	for _, p := range all {
		limit <- struct{}{}
		parts.Go(func() { <-limit; s.perform(p) })
	}
	s.rollouts(&parts)
	parts.Wait()
	s.compare(all)
}

// compare waits until no act is open, and compares.
func (s *theater) compare(all []*play) {
	var judged map[string][]act // by UID
	s.await("all judged", func() bool {
		judged = map[string][]act{}
		for _, a := range s.referee() {
			if a.Namespace == namespace {
				judged[a.UID] = append(judged[a.UID], a)
			}
		}
		for _, acts := range judged {
			if strings.Contains(outcomes(acts), "open") {
				return false
			}
		}
		return true
	})
	byName := map[string][]act{}
	disputes := 0
	for uid, want := range judged {
		var got []act
		s.await(want[0].Name+" judged", func() bool {
			got = s.ask(uid)
			return !strings.Contains(outcomes(got), "open") && len(got) >= len(want)
		})
		if outcomes(got) != outcomes(want) {
			disputes++
			s.t.Errorf("%s: tracecenter %s, referee %s\n%+v\n%+v", want[0].Name, outcomes(got), outcomes(want), got, want)
		}
		byName[want[0].Name] = append(byName[want[0].Name], got...)
	}
	upgrades := map[string]int{}
	for _, acts := range byName {
		for _, a := range acts {
			if a.Act == "upgrade" {
				upgrades[a.Outcome]++
			}
		}
	}
	// Two pods of a StatefulSet, one of a DaemonSet and one in place are in time; one pod and three in place are late. The
	// StatefulSet controller may delete a new pod before it is ready: that upgrade is excluded, for the referee too.
	if e := upgrades["excluded"]; upgrades["delivered"]+upgrades["missed"]+e < 8 || e > 1 || min(upgrades["delivered"], upgrades["missed"])+e < 4 {
		s.t.Errorf("upgrades %v: want 4 in time and 4 late, of which one may be excluded", upgrades)
	}
	s.t.Logf("%d pods, %d disputes with the referee", len(judged), disputes)
	s.confusion(all, byName)
}

// confusion compares the reasons with the answer key, and prints the differences.
func (s *theater) confusion(all []*play, byName map[string][]act) {
	table := map[string]int{}
	right, class, unknown, total := 0, 0, 0, 0
	for _, p := range all {
		acts := byName[p.name]
		if got := outcomes(acts); p.verdicts != "" && got != p.verdicts && p.name != "e-again" {
			s.t.Errorf("%s: %s, want %s: %+v", p.name, got, p.verdicts, acts)
		}
		i := slices.IndexFunc(acts, func(a act) bool { return a.Outcome == "missed" })
		if p.reason == "" || i < 0 {
			continue
		}
		total++
		if acts[i].Reason == p.reason {
			right++
		} else {
			table[fmt.Sprintf("%-26s judged as %-26s %s: %s", p.reason, acts[i].Reason, p.name, acts[i].Detail)]++
		}
		if acts[i].Class == p.class {
			class++
		}
		if acts[i].Reason == "Unknown" {
			unknown++
		}
	}
	lines := []string{}
	for text := range table {
		lines = append(lines, text)
	}
	slices.Sort(lines)
	s.t.Logf("reasons right %d of %d, class %d, unknown %d\n%s", right, total, class, unknown, strings.Join(lines, "\n"))
	if right*100 < total*95 || class*100 < total*98 || unknown*100 >= total*2 && unknown > 0 {
		s.t.Errorf("want 95 %% of the reasons right, 98 %% of the classes, and less than 2 %% unknown")
	}
}
