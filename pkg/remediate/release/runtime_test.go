package release

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// runtimeWorld is a world with a real containerd.
func runtimeWorld(t *testing.T) (*world, *mutatetest.Containerd) {
	c := mutatetest.StartContainerd(t)
	w := newWorld(t, func(p *host.Paths) { p.CRISocket, p.ContainerdSocket = c.Socket, c.Socket })
	runtime, closer, err := cri.NewRuntime(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer.Close() })
	containerd, closer2, err := cri.NewContainerd(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closer2.Close() })
	runtime.Status = noSandboxes().Status // it has no network: the sandboxes here use the host's
	w.Host.Runtime, w.Host.Containerd = runtime, containerd
	w.beside.Engines(c)
	return w, c
}

// sandboxed makes a pod with a sandbox, a container and a volume.
func (w *world) sandboxed(c *mutatetest.Containerd, uid string) {
	w.t.Helper()
	parent := w.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	s := c.Sandbox(uid, parent, false)
	c.Container(s, parent)
	w.Write(w.PodDir(uid, "etc-hosts"), "hosts")
	w.Mount("tmpfs", w.PodDir(uid, "volumes/kubernetes.io~secret/s"), "tmpfs", 0)
}

// ripen inspects until the pod is proven to be a leftover: its containers had their own second of grace.
func (w *world) ripen(uid string) {
	w.t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		why := ""
		for _, o := range w.inspect().Objects {
			// a lease goes with its sandbox
			if o.Pod.UID == uid && o.Verdict != object.Leftover && o.Kind != object.Lease &&
				kinds.Of(o.Kind).ReportOnly == "" {
				why = string(o.Kind) + " is " + string(o.Verdict) + ": " + o.Why
			}
		}
		if why == "" {
			return
		}
		select {
		case <-deadline:
			w.t.Fatal(why)
		case <-tick.C:
		}
	}
}

func TestReleaseSandbox(t *testing.T) {
	w, c := runtimeWorld(t)
	dead := mutatetest.UID(t)
	w.Cgroups(dead, "")
	w.Cgroups(w.living, "")
	w.sandboxed(c, w.living)
	w.sandboxed(c, dead)
	w.ripen(dead)
	before := w.census(pod{uid: w.living, data: w.Mkdir(filepath.Join(w.Dir, "none"))})
	outcome := w.release()
	if left := w.left(dead); len(left) > 0 || len(outcome.Pods) != 1 || outcome.Pods[0].Result != Released {
		t.Fatalf("left: %q\n%s", left, describe(outcome))
	}
	for _, s := range outcome.Pods[0].Steps {
		if s.Kind == object.Container && s.Result != Vanished {
			t.Errorf("container: %s, want it gone with its sandbox", s.Result)
		}
	}
	unchanged(t, "the living pod", before, w.census(pod{uid: w.living, data: filepath.Join(w.Dir, "none")}))
}

func TestCrashInSandbox(t *testing.T) {
	t.Parallel()
	const parts = 3
	part, inside := mutatetest.Parts(t, parts)
	if !inside {
		return
	}
	w, c := runtimeWorld(t)
	w.Cgroups(w.living, "")
	w.sandboxed(c, w.living)
	for at, crashed := 1+part, true; crashed; at += parts {
		dead := mutatetest.UID(t)
		w.Cgroups(dead, "")
		w.sandboxed(c, dead)
		w.ripen(dead)
		crashed = w.crash(at, object.Cgroup) // a dozen hierarchies; TestCrashAnywhere has them
		outcome := w.release()
		if left := w.left(dead); len(left) > 0 {
			t.Fatalf("crash at %d: left %q\n%s", at, left, describe(outcome))
		}
		t.Logf("crash at %d: %v", at, crashed)
	}
}

// A stopped release also stops between two changes of one step: a sandbox with many containers takes minutes.
func TestStopInSandbox(t *testing.T) {
	w, c := runtimeWorld(t)
	for name, happens := range map[string]func(uid string){
		"kill switch":     func(string) { w.Write(w.settings.KillSwitch, "") },
		"kubelet has pod": func(uid string) { w.known[uid] = true },
	} {
		// A busy runtime may fail to stop a container in time. Its processes are then ended without it, and there is no
		// point between the two changes.
		const attempts = 5
		stopped := false
		for attempt := 1; attempt <= attempts && !stopped; attempt++ {
			uid := mutatetest.UID(t)
			w.Cgroups(uid, "")
			w.sandboxed(c, uid)
			w.ripen(uid)
			w.faultPoint = func(point string) error {
				if point == "sandbox: container stopped" {
					stopped = true
					happens(uid)
				}
				return nil
			}
			outcome := w.release()
			w.faultPoint = nil
			if stopped {
				w.stoppedInSandbox(name, uid, outcome)
			} else {
				t.Logf("%s: attempt %d: the runtime did not stop the container:\n%s", name, attempt, describe(outcome))
			}
			_ = os.Remove(w.settings.KillSwitch)
			delete(w.known, uid)
			w.release()
		}
		if !stopped {
			t.Errorf("%s: the runtime stopped no container in %d attempts", name, attempts)
		}
	}
}

// stoppedInSandbox demands that a release stopped for the given reason before it stopped the sandbox itself.
func (w *world) stoppedInSandbox(why, uid string, outcome Outcome) {
	w.t.Helper()
	if len(outcome.Pods) != 1 || outcome.Pods[0].Result != Stopped || !strings.Contains(outcome.Pods[0].Why, why) {
		w.t.Errorf("%s: %s", why, describe(outcome))
	}
	sandboxes, err := w.Host.Runtime.Sandboxes(w.t.Context())
	if err != nil {
		w.t.Fatal(err)
	}
	if !slices.ContainsFunc(sandboxes, func(s *runtimeapi.PodSandbox) bool {
		return s.GetMetadata().GetUid() == uid && s.GetState() == runtimeapi.PodSandboxState_SANDBOX_READY
	}) {
		w.t.Errorf("%s: the sandbox was stopped", why)
	}
}
