package release

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// releaser is the input of a process that runs one release; the node is the same, as after a restart of the agent.
type releaser struct {
	Paths    host.Paths
	Kubelet  []corev1.Pod
	Cluster  []corev1.Pod
	Node     *corev1.Node
	Working  map[string]float64
	Settings Settings
	StateDir string
	KillAt   int // kill -9 at this fault point; 0: never
}

const releaserFile = "NODEAGENT_TEST_RELEASER"

// releaserMain runs such a process, and returns true if this is one. For TestMain.
func releaserMain() bool {
	file := os.Getenv(releaserFile)
	if file == "" {
		return false
	}
	if err := releaseOnce(file); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	return true
}

func releaseOnce(file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var r releaser
	if err := json.Unmarshal(data, &r); err != nil {
		return err
	}
	h := &host.Host{Paths: r.Paths, Clock: host.Now, Prober: probe.NewProber(), NodeName: "node", Runtime: noSandboxes(),
		Plugins: hostkubelet.NewPlugins(r.Paths.KubeletRoot)}
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return r.Kubelet, nil }
	h.Kubelet.Metric = func(context.Context, string) (map[string]float64, error) { return r.Working, nil }
	h.Cluster = host.Cluster{
		Pods:    func(context.Context) ([]corev1.Pod, error) { return r.Cluster, nil },
		Node:    func(context.Context) (*corev1.Node, error) { return r.Node, nil },
		CSINode: func(context.Context) (*storagev1.CSINode, error) { return namesDrivers(), nil },
	}
	log, hits := slog.New(slog.DiscardHandler), 0
	mutator, err := mutate.New(h, log)
	if err != nil {
		return err
	}
	inspector := inspect.New(h, object.Settings{Passes: 1, MassOrphaning: 1000, MassPercent: 100, HostNamespaces: true},
		log)
	history := object.History{}
	memory := filepath.Join(r.StateDir, "history.json")
	if data, err := os.ReadFile(memory); err == nil {
		if err := json.Unmarshal(data, &history); err != nil {
			return err
		}
	}
	pass := func(ctx context.Context) (report object.Report) {
		report, history = inspector.Pass(ctx, history, withoutOptIn()...)
		return report
	}
	first := pass(context.Background())
	// Like the agent: the next step may remove the file that names the owner of a namespace.
	if data, err = json.Marshal(history); err == nil {
		err = os.WriteFile(memory, data, 0o600)
	}
	if err != nil {
		return err
	}
	runner, err := New(Options{Settings: r.Settings, Host: h, Mutator: mutator, Log: log, StateDir: r.StateDir,
		Confirm:   func(ctx context.Context, _ string) (object.Report, error) { return pass(ctx), nil },
		StillGone: inspector.StillGone,
		faultPoint: func(string) error {
			if hits++; hits == r.KillAt {
				return unix.Kill(os.Getpid(), unix.SIGKILL)
			}
			return nil
		}})
	if err != nil {
		return err
	}
	outcome, err := runner.Release(context.Background(), first)
	if err == nil && slices.ContainsFunc(outcome.Pods, func(p PodOutcome) bool { return p.Result != Released }) {
		err = errors.New(describe(outcome))
	}
	fmt.Println(hits)
	return errors.Join(err, mutator.Close())
}

// releaseInProcess runs a release in its own process, and returns its number of fault points, or that it was killed.
func (w *world) releaseInProcess(killAt int) (points int, killed bool) {
	w.t.Helper()
	kubelet, err := w.Host.Kubelet.Pods(w.t.Context())
	cluster, err2 := w.Host.Cluster.Pods(w.t.Context())
	node, err3 := w.node(w.t.Context())
	data, err4 := json.Marshal(releaser{Paths: w.Host.Paths, Kubelet: kubelet, Cluster: cluster, Node: node,
		Working: w.working, Settings: w.settings, StateDir: filepath.Join(w.Dir, "state"), KillAt: killAt})
	if err := errors.Join(err, err2, err3, err4); err != nil {
		w.t.Fatal(err)
	}
	var complaint strings.Builder
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), releaserFile+"="+w.Write(filepath.Join(w.Dir, "state", "releaser.json"), string(data)))
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() && killAt > 0 {
		return 0, true
	}
	if err == nil {
		points, err = strconv.Atoi(strings.TrimSpace(string(out)))
	}
	if err != nil {
		w.t.Fatalf("%v: %s %s", err, out, &complaint)
	}
	return points, false
}
