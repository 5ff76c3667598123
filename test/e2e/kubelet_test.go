package e2e

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/stuckpods"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/need"
)

// kubeletLab is the lab's node with the clients that checks have.
type kubeletLab struct {
	t      *testing.T
	lab    *lab.Lab
	config kube.Config
	host   *host.Host
}

func openKubeletLab(t *testing.T) *kubeletLab {
	t.Helper()
	observesInTest(t)
	l := openLab(t)
	k := &kubeletLab{t: t, lab: l, config: kube.Config{Node: l.NodeName, Kubeconfig: l.Paths.AdminKubeconfig}}
	paths := discover.DefaultPaths()
	paths.KubeletRoot, paths.KubeletConfig, paths.KubeletCAFile = l.Paths.KubeletRoot, l.Paths.KubeletConfig,
		l.Paths.CAFile
	paths.KubeletAPI = "https://127.0.0.1:" + strconv.Itoa(l.KubeletPort())
	paths.CRISocket, paths.ContainerdRoot, paths.CgroupRoot = l.Paths.CRISocket, l.Paths.ContainerdRoot,
		l.Paths.CgroupRoot
	client, err := kube.New(k.config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	runtime, closer, err := cri.NewRuntime(paths.CRISocket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(closer.Close(), client.Close()) })
	k.host = &host.Host{
		NodeName: l.NodeName, Paths: paths, Clock: host.Now, Runtime: runtime, Cluster: client.Cluster(),
		Prober:    probe.NewProber(),
		TimeClock: func() (host.ClockState, error) { return host.ClockState{MaxError: 20 * time.Millisecond}, nil },
	}
	k.renew()
	return k
}

// renew opens a new client of kubelet, so that its metrics are requested and not taken from the client's cache.
func (k *kubeletLab) renew() {
	k.host.Kubelet = kube.NewKubelet(k.config, host.Files{}, k.host.Paths)
}

// observe runs a check once with fresh metrics and returns the findings by subject.
func (k *kubeletLab) observe(check detect.Check) map[string]finding.Finding {
	k.t.Helper()
	k.renew()
	found, err := check.Run(k.t.Context(), k.host)
	if err != nil {
		k.t.Fatalf("%s: %v", check.ID, err)
	}
	all := map[string]finding.Finding{}
	for _, f := range found {
		all[f.Subject.String()] = f
	}
	return all
}

// await runs a check until it reports the wanted findings: subject to a part of "reason stage message"; "" for a
// subject that must not be reported.
func (k *kubeletLab) await(check detect.Check, want map[string]string) {
	k.t.Helper()
	var latest map[string]finding.Finding
	err := harness.WaitFor(k.t.Context(), check.ID, func() error {
		latest = k.observe(check)
		for subject, part := range want {
			f, there := latest[subject]
			if text := f.Reason + " " + f.Facts["stage"] + " " + f.Message; there == (part == "") || there &&
				!strings.Contains(text, part) {
				return fmt.Errorf("%s: %q, want %q", subject, text, part)
			}
		}
		return nil
	})
	for _, subject := range slices.Sorted(maps.Keys(latest)) {
		k.t.Logf("%s %s: %s %v", latest[subject].Severity, subject, latest[subject].Message, latest[subject].Facts)
	}
	if err != nil {
		k.t.Fatal(err)
	}
}

const stuckManifest = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: default%[4]s}
spec:
  nodeName: lab-node
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: %[2]s
    imagePullPolicy: IfNotPresent
    command: ["sleep", "100000"]
%[3]s
---
`

// Pods that wait for an image, a ConfigMap in two ways and a CSI driver; pods that do not end because they are frozen
// or held. All are found with their stage, and the findings end after the repair.
func TestStuckPods(t *testing.T) {
	t.Parallel()
	k := openKubeletLab(t)
	const image, volume = "localhost/busybox:1", "    volumeMounts: [{name: v, mountPath: /v}]\n  volumes:\n  - "
	manifest := strings.ReplaceAll(fmt.Sprintf(stuckManifest, "stuck-pull", "127.0.0.1:9/absent:1", "", "")+
		fmt.Sprintf(stuckManifest, "stuck-volume", image, volume+"{name: v, configMap: {name: stuck-settings}}", "")+
		fmt.Sprintf(stuckManifest, "stuck-env", image, "    envFrom: [{configMapRef: {name: stuck-settings}}]", "")+
		fmt.Sprintf(stuckManifest, "stuck-csi", image, volume+"{name: v, csi: {driver: absent.csi.example.com}}", "")+
		fmt.Sprintf(stuckManifest, "stuck-frozen", image, "", "")+
		fmt.Sprintf(stuckManifest, "stuck-held", image, "", ", finalizers: [example.com/hold]"), "lab-node",
		k.lab.NodeName)
	if err := k.lab.KubectlApply(t.Context(), manifest); err != nil {
		t.Fatal(err)
	}
	frozen := k.freeze("stuck-frozen")
	t.Cleanup(func() { k.clear(frozen) })
	if _, err := k.lab.Kubectl(t.Context(), "delete", "pod", "stuck-frozen", "stuck-held", "--wait=false"); err != nil {
		t.Fatal(err)
	}
	settings := stuckpods.Settings{StartAfter: 3 * time.Second, PullAfter: 3 * time.Second,
		TerminateAfter: 3 * time.Second, Many: 100}
	check := stuckpods.New(settings)
	volumes := kubernetes.VolumeMounts()
	k.observe(volumes)
	k.await(check, map[string]string{ // beside pods that come and go
		"pod/default/stuck-pull":   "PodStuckStarting image has not started",
		"pod/default/stuck-volume": "PodStuckStarting volumes has not started",
		"pod/default/stuck-env":    "PodCannotStart container",
		"pod/default/stuck-csi":    "v (CSI driver absent.csi.example.com)",
		"pod/default/stuck-frozen": "PodStuckTerminating frozen",
		"pod/default/stuck-held":   "PodHeldByFinalizers finalizers",
	})
	k.await(volumes, map[string]string{
		"csi-driver/absent.csi.example.com":     "VolumeMountsFail",
		"volume-plugin/kubernetes.io/configmap": "VolumeObjectsMissing",
	})
	if _, err := k.lab.Kubectl(t.Context(), "create", "configmap", "stuck-settings"); err != nil {
		t.Fatal(err)
	}
	k.clear(frozen, "stuck-frozen", "stuck-held")
	k.await(check, map[string]string{
		"pod/default/stuck-volume": "", "pod/default/stuck-env": "", "pod/default/stuck-frozen": "",
		"pod/default/stuck-held": "",
	})
}

// freeze freezes the cgroup of a pod once it runs, and returns the means to thaw it.
func (k *kubeletLab) freeze(name string) *harness.Victim {
	k.t.Helper()
	pod, err := k.lab.WaitPodRunning(k.t.Context(), "default", name)
	if err != nil {
		k.t.Fatal(err)
	}
	victim := &harness.Victim{Lab: k.lab, Name: name, UID: pod.UID}
	if err := victim.Freeze("FROZEN"); err != nil {
		k.t.Fatal(err)
	}
	return victim
}

// clear releases pods of the test, or, without names, all of them.
func (k *kubeletLab) clear(frozen *harness.Victim, names ...string) {
	ctx := context.WithoutCancel(k.t.Context())
	_ = frozen.Freeze("THAWED") // gone already: fine
	_, _ = k.lab.Kubectl(ctx, "patch", "pod", "stuck-held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	if len(names) == 0 {
		_, _ = k.lab.Kubectl(ctx, "delete", "pod", "stuck-pull", "stuck-volume", "stuck-env", "stuck-csi",
			"stuck-frozen", "stuck-held", "--ignore-not-found", "--timeout=60s")
		_, _ = k.lab.Kubectl(ctx, "delete", "configmap", "stuck-settings", "--ignore-not-found")
	}
}

// A healthy kubelet has no finding. While the runtime hangs kubelet's metrics hang too, and after three minutes its
// Node reports that its PLEG is not healthy; soon after the runtime recovers, it does too.
func TestKubeletPLEG(t *testing.T) {
	need.Flag(t, *long, "-long: takes more than four minutes, as long as kubelet takes to notice")
	k := openKubeletLab(t)
	check := kubernetes.KubeletPLEG()
	k.await(check, map[string]string{"kubelet/kubelet": ""})
	if err := k.lab.Signal("containerd", syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	resume := func() { _ = k.lab.Signal("containerd", syscall.SIGCONT) }
	t.Cleanup(resume)
	stopped := time.Now()
	err := harness.WaitFor(t.Context(), "PLEGUnhealthy", func() error {
		k.renew()
		found, err := check.Run(t.Context(), k.host)
		if err != nil {
			return err
		}
		for _, f := range found {
			t.Logf("after %s: %s: %s", time.Since(stopped).Round(time.Second), f.Severity, f.Message)
			if f.Reason == "PLEGUnhealthy" && f.Severity == finding.Fatal {
				return nil
			}
		}
		return errors.New("none")
	})
	if err != nil {
		t.Error(err)
	}
	resume()
	err = harness.WaitFor(t.Context(), "a healthy PLEG", func() error {
		k.renew()
		found, err := check.Run(t.Context(), k.host)
		if len(found) > 0 {
			return errors.New(found[0].Message)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// The real certificates are valid, and expire in time.
func TestKubeletCertificates(t *testing.T) {
	k := openKubeletLab(t)
	check := kubernetes.KubeletCertificates()
	if found := k.observe(check); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	k.host.Clock = func() finding.Timestamp { now := host.Now(); now.Wall = now.Wall.AddDate(1, 0, 1); return now }
	found := k.observe(check)
	client, serving := found["certificate/kubelet-client"], found["certificate/kubelet-serving"]
	if client.Reason != "KubeletCertificateExpired" || client.Severity != finding.Fatal ||
		serving.Reason != "KubeletCertificateExpired" || serving.Severity != finding.Warning {
		t.Errorf("a year later: %v", found)
	}
}

// The Node is this machine, until another machine has its name.
func TestNodeRegistration(t *testing.T) {
	k := openKubeletLab(t)
	if found := k.observe(kubernetes.NodeRegistration()); len(found) > 0 {
		t.Errorf("found %v", found)
	}
	root := t.TempDir()
	for name, text := range map[string]string{"etc/machine-id": "00000000000000000000000000000001",
		"proc/sys/kernel/random/boot_id": "other"} {
		if err := errors.Join(os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755),
			os.WriteFile(filepath.Join(root, name), []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	k.host.Files.Root = root
	k.await(kubernetes.NodeRegistration(),
		map[string]string{"node/" + k.lab.NodeName: "NodeIsAnotherMachine"})
}

// Checks of kubelet's metrics, configuration and disks have no findings on a healthy node; while the apiserver is
// unreachable kubelet's requests fail, and no longer when it is back.
func TestKubeletSync(t *testing.T) {
	k := openKubeletLab(t)
	for _, check := range []detect.Check{kubernetes.KubeletRestarts(nil), kubernetes.KubeletConfig(nil),
		kubernetes.ProbeStorms(), kubernetes.KubeletSync()} {
		for range 2 {
			if found := k.observe(check); len(found) > 0 {
				t.Errorf("%s: found %v", check.ID, found)
			}
		}
	}
	check := kubernetes.KubeletSync()
	k.observe(check)
	if err := k.lab.Stop(t.Context(), "kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	start := sync.OnceValue(func() error { return k.lab.Start(context.WithoutCancel(t.Context()), "kube-apiserver") })
	defer func() {
		if err := start(); err != nil {
			t.Error(err)
		}
	}()
	k.config.Timeout = 5 * time.Second
	// Kubelet caches the agent's identity for some seconds only (cacheTTL), and cannot verify it meanwhile.
	time.AfterFunc(12*time.Second, func() { _ = start() })
	err := harness.WaitFor(t.Context(), "failed requests", func() error {
		k.renew()
		found, err := check.Run(t.Context(), k.host)
		if err != nil {
			return err
		}
		for _, f := range found {
			if f.Reason == "ApiserverRequestsFail" {
				t.Log(f.Message)
				return nil
			}
		}
		return errors.New("none")
	})
	if err != nil {
		t.Error(err)
	}
}

// The shipped agent has the permissions for all requests of its checks to kubelet.
func TestKubeletChecksOfTheAgent(t *testing.T) {
	l := openLab(t)
	a := install(t, l, nil)
	answer, err := a.CLI(t.Context(), "check")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s of a processor, %s\n%s", answer.CPU, answer.Wall, answer.Stdout)
	for line := range strings.Lines(answer.Stdout) {
		for _, id := range []string{"kubelet-", "stuck-pods", "volume-mounts", "probe-storms", "node-registration",
			"evictions"} {
			if strings.Contains(line, id) && (strings.Contains(line, "forbidden") ||
				strings.Contains(line, "could not tell")) {
				t.Error(line)
			}
		}
	}
}
