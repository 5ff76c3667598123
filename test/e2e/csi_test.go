package e2e

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/kube"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes/csiregistration"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
)

// csiLab is the node of the running lab, with a fake CSI driver as a process beside its kubelet.
type csiLab struct {
	t      *testing.T
	lab    *lab.Lab
	host   *host.Host
	check  detect.Check
	name   string // of the driver, one for each test: some run in parallel
	driver *exec.Cmd
}

// buildDriver builds the fake CSI driver and returns its path.
var buildDriver = sync.OnceValues(func() (string, error) {
	binary := filepath.Join(builds, "fakecsi")
	build := exec.Command("go", "build", "-o", binary, "../fakecsi/cmd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // it also runs in containers that have no C library
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the fake driver: %w\n%s", err, out)
	}
	return binary, nil
})

func openCSILab(t *testing.T) *csiLab {
	t.Helper()
	observesInTest(t)
	l := openLab(t)
	c := &csiLab{t: t, lab: l, name: strings.ToLower(t.Name()) + ".example.com"}
	config := kube.Config{Node: l.NodeName, Kubeconfig: l.Paths.AdminKubeconfig}
	client, err := kube.New(config, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	paths := host.Paths{
		InitPID: 1, KubeletRoot: l.Paths.KubeletRoot, KubeletConfig: l.Paths.KubeletConfig,
		PluginRegistry: filepath.Join(l.Paths.KubeletRoot, "plugins_registry"),
		KubeletAPI:     "https://127.0.0.1:" + strconv.Itoa(l.KubeletPort()), KubeletCAFile: l.Paths.CAFile,
	}
	c.host = &host.Host{
		NodeName: l.NodeName, Paths: paths, Clock: host.Now, Plugins: kubelet.NewPlugins(l.Paths.KubeletRoot),
		Kubelet: kube.NewKubelet(config, host.Files{}, paths), Cluster: client.Cluster(),
	}
	settings := csiregistration.DefaultSettings()
	settings.Drivers, settings.Timeout, settings.Reread = []string{c.name}, 2*time.Second, time.Second
	c.check = csiregistration.New(settings, nil)
	t.Cleanup(c.clean)
	return c
}

// start runs the driver; arguments may make it fail.
func (c *csiLab) start(args ...string) {
	c.t.Helper()
	binary, err := buildDriver()
	if err != nil {
		c.t.Fatal(err)
	}
	args = append([]string{"-name", c.name, "-kubelet-root", c.lab.Paths.KubeletRoot, "-node-id", "lab-node-id"},
		args...)
	c.driver = exec.CommandContext(c.t.Context(), binary, args...)
	c.driver.Stdout, c.driver.Stderr = c.t.Output(), c.t.Output()
	if err := c.driver.Start(); err != nil {
		c.t.Fatal(err)
	}
}

// kill ends the driver at once: its sockets stay.
func (c *csiLab) kill() {
	if c.driver != nil {
		_ = c.driver.Process.Kill()
		_ = c.driver.Wait()
		c.driver = nil
	}
}

func (c *csiLab) socket() string {
	return filepath.Join(c.host.Paths.PluginRegistry, c.name+"-reg.sock")
}

func (c *csiLab) clean() {
	c.kill()
	_ = os.Remove(c.socket())
	_ = os.Remove(filepath.Join(c.lab.Paths.KubeletRoot, "plugins", c.name, "csi.sock"))
	_ = os.Remove(filepath.Join(c.lab.Paths.KubeletRoot, "plugins", c.name))
}

// await runs the check each second until it reports the driver with the reason, "" for healthy. Kubelet retries a
// rejected socket after up to 2 min 2 s (pkg/kubelet/pluginmanager/operationexecutor, exponential back-off by socket
// path).
func (c *csiLab) await(reason string) finding.Finding {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), harness.Patience)
	defer cancel()
	began := time.Now()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		found, err := c.check.Run(ctx, c.host)
		var mine finding.Finding
		for _, f := range found {
			if f.Subject.Name == c.name {
				mine = f
			}
		}
		if err == nil && mine.Reason == reason {
			c.t.Logf("%q after %s: %s", reason, time.Since(began).Round(100*time.Millisecond), mine.Message)
			return mine
		}
		select {
		case <-ctx.Done():
			c.t.Fatalf("want reason %q, got %q (%s), error %v", reason, mine.Reason, mine.Message, err)
		case <-tick.C:
		}
	}
}

// The real kubelet registers the driver, rejects it and loses it; the check reports each step.
func TestCSIRegistration(t *testing.T) {
	t.Parallel()
	c := openCSILab(t)
	c.await("CSIDriverPodMissing") // the configuration lists it, but it is a process of the test and not of a pod

	c.start()
	c.await("")

	c.kill()
	c.await("CSISocketStale")

	if err := os.Remove(c.socket()); err != nil {
		t.Fatal(err)
	}
	c.await("CSIDriverPodMissing")

	c.start("-knobs", `{"nodeInfoError":"metadata service is unreachable"}`)
	if f := c.await("CSIRegistrationRejected"); !strings.Contains(f.Message, "metadata service is unreachable") {
		t.Errorf("the message does not say why: %s", f.Message)
	}
	c.kill()
	c.start("-knobs", `{"emptyNodeID":true}`)
	if f := c.await("CSIRegistrationRejected"); !strings.Contains(f.Message, "empty node ID") {
		t.Errorf("the message does not say why: %s", f.Message)
	}
	c.kill()
	c.start("-knobs", `{"notReady":true}`)
	c.await("CSIDriverNotReady")

	c.kill()
	c.start()
	c.await("")
}

// A registrar's pod on the node, which mounts kubelet's plugin registry, makes its driver expected, and its socket missing.
func TestCSIRegistrationSocketMissing(t *testing.T) {
	t.Parallel()
	c := openCSILab(t)
	const pod = "fake-registrar"
	endpoint := filepath.Join(c.lab.Paths.KubeletRoot, "plugins", c.name, "csi.sock")
	err := c.lab.KubectlApply(t.Context(), fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q,"namespace":"default"},
"spec":{"nodeName":%q,"terminationGracePeriodSeconds":1,"tolerations":[{"operator":"Exists"}],
"containers":[{"name":"main","image":%q,"imagePullPolicy":"Never","command":["sh","-c","sleep 100000; exit","--kubelet-registration-path=%s"]}],
"volumes":[{"name":"registry","hostPath":{"path":"%s/plugins_registry"}}]}}`, pod, c.lab.NodeName, lab.BusyboxImage, endpoint, c.lab.Paths.KubeletRoot))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.lab.DeletePod(context.WithoutCancel(t.Context()), "default", pod); err != nil {
			t.Error(err)
		}
	})
	settings := csiregistration.DefaultSettings()
	settings.StartGrace = 5 * time.Second
	c.check = csiregistration.New(settings, nil)
	if f := c.await("CSISocketMissing"); f.Facts["driverPod"] != "default/"+pod {
		t.Errorf("facts %v", f.Facts)
	}
	c.start()
	c.await("")
}
