package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// explained is the part of the output of "nodeagent inspect pod -o json" that this test reads.
type explained struct {
	Verdict, Stage, Blocker, Holder, Next string
	Evidence                              []struct{ Source, Says string }
}

// The real CLI explains why real pods are stuck: with a missing image, a missing ConfigMap, frozen processes, a busy
// volume, a finalizer, and a pod of which only a leftover remains.
func TestInspectPod(t *testing.T) {
	ofTheProcess(t, "it gives the agent one identity after the other")
	l := openLab(t)
	a := install(t, l, nil)
	const image, volume = lab.BusyboxImage, "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - "
	names := []string{"why-image", "why-settings", "why-frozen", "why-busy", "why-held", "why-well", "why-network"}
	manifest := fmt.Sprintf(stuckManifest, names[0], "127.0.0.1:9/absent:1", "", "") +
		fmt.Sprintf(stuckManifest, names[1], image, volume+"{name: v, configMap: {name: why-settings}}", "") +
		fmt.Sprintf(stuckManifest, names[2], image, "", "") +
		fmt.Sprintf(stuckManifest, names[3], image, volume+"{name: v, emptyDir: {medium: Memory}}", "") +
		fmt.Sprintf(stuckManifest, names[4], image, "", ", finalizers: [example.com/hold]") +
		fmt.Sprintf(stuckManifest, names[5], image, "", "") + fmt.Sprintf(stuckManifest, names[6], image, "", "")
	manifest = strings.ReplaceAll(manifest, "lab-node", l.NodeName)
	if err := l.KubectlApply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	k := &kubeletLab{t: t, lab: l}
	frozen := k.freeze("why-frozen")
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		_ = frozen.Freeze("THAWED") // gone already: fine
		_, _ = l.Kubectl(ctx, "patch", "pod", "why-held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		_, _ = l.Kubectl(ctx, append([]string{"delete", "pod", "--ignore-not-found", "--timeout=60s"}, names...)...)
	})
	holder := holdVolume(t, l, "why-busy", "volumes/kubernetes.io~empty-dir/v")
	if _, err := l.Kubectl(t.Context(), "delete", "pod", "why-frozen", "why-busy", "why-held",
		"--wait=false"); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, a, "why-image", 1, "stuck image", "127.0.0.1:9/absent:1", "crictl pull")
	awaitAnswer(t, a, "why-settings", -1, "volumes", "v (ConfigMap why-settings)", "forbidden")
	awaitAnswer(t, a, "why-frozen", 1, "stuck terminating-container", "frozen by cgroup", "pid ", "freeze")
	awaitAnswer(t, a, "why-busy", 1, "stuck terminating-volumes", "kubernetes.io~empty-dir/v (tmpfs)",
		fmt.Sprintf("pid %d sleep (cwd), of no pod", holder), "ps -o")
	awaitAnswer(t, a, "why-held", 1, "stuck terminating-finalizers", "example.com/hold")
	awaitAnswer(t, a, "why-well", 0, "fine healthy")
	awaitAnswer(t, a, "why-not", 1, "stuck no-such-pod")

	// With the node's own identity, which may read the objects that its pods need.
	asNode := harness.Overrides{"paths": map[string]any{"kubeconfig": l.Paths.KubeletKubeconfig}}
	if err := a.Configure(asNode); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, a, "why-settings", 1, "stuck volumes", "ConfigMap default/why-settings, which does not exist",
		"get configmap why-settings")
	awaitAnswer(t, a, "why-busy", 1, "stuck terminating-volumes", "sleep (cwd)")
	awaitAnswer(t, a, "why-not", 2, "unknown not-bound-here", "could not be told")

	// With an identity that may read events too.
	asAdmin := harness.Overrides{"paths": map[string]any{"kubeconfig": l.Paths.AdminKubeconfig}}
	if err := a.Configure(asAdmin); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, a, "why-network", 0, "fine healthy")
	breakNetwork(t, l)
	if _, err := l.Kubectl(t.Context(), "delete", "pod", "why-network", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, a, "why-network", 1, "stuck terminating-sandbox", "not a directory", "network "+lab.Network, "crictl stopp")
	if _, err := l.Kubectl(t.Context(), "delete", "pod", "why-frozen", "--force", "--grace-period=0"); err != nil {
		t.Fatal(err)
	}
	awaitAnswer(t, a, "why-frozen", 1, "stuck left-behind", "sandboxes: 1", "processes: ", "nodeagent inspect")
}

// breakNetwork makes every CNI DEL fail until the test ends: host-local finds a file in place of its leases.
func breakNetwork(t *testing.T, l *lab.Lab) {
	t.Helper()
	leases := filepath.Join(l.Paths.CNINetworksDir, lab.Network)
	t.Cleanup(func() {
		if err := errors.Join(os.Remove(leases), os.Rename(leases+".away", leases)); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.Rename(leases, leases+".away"), os.WriteFile(leases, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
}

// holdVolume works in a volume of a pod once it runs, so that it cannot be unmounted.
func holdVolume(t *testing.T, l *lab.Lab, name, volume string) (pid int) {
	t.Helper()
	pod, err := l.WaitPodRunning(t.Context(), "default", name)
	if err != nil {
		t.Fatal(err)
	}
	holder := exec.CommandContext(t.Context(), "sleep", "1000")
	holder.Dir = filepath.Join(l.Paths.KubeletRoot, "pods", pod.UID, volume)
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = holder.Process.Kill(), holder.Wait() })
	return holder.Process.Pid
}

// awaitAnswer repeats the command until the answer, as "verdict stage blocker holder next evidence", has all parts in
// this order. A code below 0 matches any.
func awaitAnswer(t *testing.T, a *harness.Agent, name string, code int, parts ...string) {
	t.Helper()
	err := harness.WaitFor(t.Context(), name, func() error {
		var e explained
		answer, err := a.JSON(t.Context(), &e, "inspect", "pod", "default/"+name)
		if err != nil {
			return err
		}
		text := strings.Join([]string{e.Verdict, e.Stage, e.Blocker, e.Holder, e.Next}, " ") + fmt.Sprint(e.Evidence)
		rest := text
		for _, part := range parts {
			_, after, found := strings.Cut(rest, part)
			if !found {
				return fmt.Errorf("no %q (in this order) in %s", part, text)
			}
			rest = after
		}
		if code >= 0 && answer.Code != code {
			return fmt.Errorf("exit code %d, want %d: %s", answer.Code, code, text)
		}
		return nil
	})
	printed, cliErr := a.CLI(t.Context(), "inspect", "pod", "default/"+name)
	t.Logf("%s\n%s%s", printed.Wall, printed.Stdout, printed.Stderr)
	if err := errors.Join(err, cliErr); err != nil {
		t.Error(err)
	}
}
