package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/harness"
	"github.com/nodeagent/nodeagent/test/lab"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

// realCase is a pod of busybox with changes, and the answer of tracecenter.
type realCase struct {
	name    string
	want    string // the first missed act and its reason, or "creation delivered"
	spec    string // fields of the pod's specification
	main    string // fields of its container
	meta    string
	replies http.HandlerFunc // of a registry: the pod's image comes from there
}

// reasonsOfPods are the reasons that a real kubelet, containerd and scheduler show.
func reasonsOfPods() []realCase {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(code) }
	}
	hangs := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	hook := func(command string) string {
		return `"lifecycle":{"postStart":{"exec":{"command":["sh","-c","` + command + `"]}}}`
	}
	probe := func(delay int) string {
		return fmt.Sprintf(`"readinessProbe":{"exec":{"command":["false"]},"periodSeconds":1,"initialDelaySeconds":%d}`, delay)
	}
	// Without a probe, a container is ready as soon as it runs.
	const passes = `"readinessProbe":{"exec":{"command":["true"]},"initialDelaySeconds":10}`
	init := func(command string) string {
		return `"initContainers":[{"name":"i","image":"` + lab.BusyboxImage + `","imagePullPolicy":"Never","command":` + command + `}]`
	}
	volume := func(source string) string { return `"volumes":[{"name":"v",` + source + `}]` }
	mount := `"volumeMounts":[{"name":"v","mountPath":"/v"}]`
	return []realCase{
		{name: "good", want: "creation delivered"},
		{name: "image-not-found", want: "ImageNotFound", replies: status(http.StatusNotFound)},
		{name: "registry-refuses", want: "RegistryUnavailable", main: `"image":"127.0.0.1:1/x:1","imagePullPolicy":"Always"`},
		{name: "registry-throttles", want: "RegistryUnavailable", replies: status(http.StatusTooManyRequests)},
		{name: "registry-denies", want: "ImagePullDenied", replies: status(http.StatusForbidden)},
		{name: "registry-fails", want: "RegistryUnavailable", replies: status(http.StatusServiceUnavailable)},
		{name: "command-not-found", want: "CommandFailed", main: `"command":["no-such-program"]`},
		{name: "crash-loop", want: "CrashLoopBackOff", main: `"command":["false"],` + passes},
		{name: "out-of-memory", want: "OOMKilledByLimit",
			main: `"command":["tail","/dev/zero"],"resources":{"limits":{"memory":"16Mi"}},` + passes},
		{name: "no-configmap", want: "ConfigMissing", spec: volume(`"configMap":{"name":"none"}`), main: mount},
		{name: "no-secret", want: "ConfigMissing", main: `"env":[{"name":"A","valueFrom":{"secretKeyRef":{"name":"none","key":"k"}}}]`},
		{name: "host-path", want: "HostPathInvalid", spec: volume(`"hostPath":{"path":"/bin/busybox","type":"Directory"}`), main: mount},
		{name: "no-driver", want: "CSIDriverMissing", spec: volume(`"csi":{"driver":"none.example"}`), main: mount},
		{name: "post-start", want: "creation delivered", main: hook("sleep 40")},
		{name: "post-start-fails", want: "PostStartFailed", main: hook("exit 3")},
		{name: "probe", want: "ProbeFailing", main: probe(0)},
		{name: "slow-program", want: "ReadinessSlow", main: probe(600)},
		{name: "readiness-gate", want: "ReadinessGateWaiting", spec: `"readinessGates":[{"conditionType":"example.com/gate"}]`},
		{name: "init-slow", want: "InitSlow", spec: init(`["sleep","100000"]`)},
		{name: "init-fails", want: "InitFailed", spec: init(`["false"]`)},
		{name: "selector", want: "UnschedulableConstraints", spec: `"nodeSelector":{"none":"such"}`},
		{name: "impossible", want: "ImpossibleRequest", main: `"resources":{"requests":{"cpu":"1000"}}`},
		{name: "no-claim", want: "PVCMissing", spec: volume(`"persistentVolumeClaim":{"claimName":"none"}`), main: mount},
		{name: "unbound", want: "VolumeUnbound", spec: volume(`"persistentVolumeClaim":{"claimName":"unbound"}`), main: mount},
		{name: "image-name", want: "InvalidImageName", main: `"image":"UPPER/Case:1","imagePullPolicy":"Always"`},
		{name: "never-pull", want: "ImageNeverPull", main: `"image":"localhost/none:1"`},
		{name: "runtime-class", want: "RuntimeClassMissing", spec: `"runtimeClassName":"none"`},
		{name: "as-root", want: "ContainerConfigInvalid", spec: `"securityContext":{"runAsNonRoot":true}`},
		{name: "finalizer", want: "FinalizerHeld", meta: `"finalizers":["example.com/hold"]`},
		{name: "registry-hangs", want: "ImagePullCostTime", replies: hangs}, // the last pull: kubelet pulls one image at a time
	}
}

const reasonsObjects = `
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"reasons"}}
---
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"reasons-quota"}}
---
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"reasons-security","labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}
---
{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"reasons-webhook"}}
---
{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"q","namespace":"reasons-quota"},"spec":{"hard":{"pods":"0"}}}
---
{"apiVersion":"admissionregistration.k8s.io/v1","kind":"ValidatingWebhookConfiguration","metadata":{"name":"reasons-webhook"},"webhooks":[
 {"name":"a.example.com","sideEffects":"None","timeoutSeconds":1,"admissionReviewVersions":["v1"],"clientConfig":{"url":"https://127.0.0.1:1/"},
  "namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"reasons-webhook"}},
  "rules":[{"apiGroups":[""],"apiVersions":["v1"],"operations":["CREATE"],"resources":["pods"]}]}]}
---
{"apiVersion":"node.k8s.io/v1","kind":"RuntimeClass","metadata":{"name":"none"},"handler":"none"}
---
{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"unbound","namespace":"reasons"},
 "spec":{"accessModes":["ReadWriteOnce"],"storageClassName":"","resources":{"requests":{"storage":"1Gi"}}}}
`

// traced is a tracecenter that follows the lab.
type traced struct {
	*lab.Lab
	t       *testing.T
	dir, on string
}

// Each pod fails in its own way on a real node, and tracecenter tells why.
func TestTraceReasons(t *testing.T) {
	need.Flag(t, *long, "-long: waits for pods that miss their time")
	observesInTest(t)
	c := &traced{Lab: openLab(t), t: t, dir: t.TempDir(), on: loopback.Free(t)}
	c.serve()
	t.Cleanup(c.clean)
	c.apply(reasonsObjects)
	if err := c.WaitNamespace(t.Context(), "reasons"); err != nil {
		t.Fatal(err)
	}
	for _, in := range []string{"reasons-quota", "reasons-security", "reasons-webhook"} {
		c.apply(c.owner(in))
	}
	cases := reasonsOfPods()
	for _, r := range cases {
		c.apply(c.pod(r))
	}
	c.await("finalizer", "creation delivered")
	if _, err := c.Kubectl(t.Context(), "delete", "pod", "-n", "reasons", "finalizer", "--wait=false"); err != nil {
		t.Error(err)
	}
	for _, r := range cases {
		if r.want != "creation delivered" && r.name != "finalizer" {
			r.want = "creation missed " + r.want
		}
		if r.name == "finalizer" {
			r.want = "deletion missed " + r.want
		}
		c.await(r.name, r.want)
	}
	c.await("reasons-quota/owner", "refusal missed QuotaExceeded")
	c.await("reasons-security/owner", "refusal missed AdmissionDenied")
	c.await("reasons-webhook/owner", "refusal missed AdmissionUnavailable")
	c.withoutNetwork()
}

// withoutNetwork puts a network with an unknown plugin before the node's own, and makes the only node unschedulable.
func (c *traced) withoutNetwork() {
	broken := filepath.Join(c.Paths.CNIConfDir, "00-broken.conflist")
	if err := os.WriteFile(broken, []byte(`{"cniVersion":"0.4.0","name":"broken","plugins":[{"type":"no-such-plugin"}]}`), 0o600); err != nil {
		c.t.Fatal(err)
	}
	defer os.Remove(broken)
	if _, err := c.Kubectl(c.t.Context(), "cordon", c.NodeName); err != nil {
		c.t.Fatal(err)
	}
	c.apply(c.pod(realCase{name: "no-network", spec: fmt.Sprintf(`"nodeName":%q`, c.NodeName)}))
	c.apply(c.pod(realCase{name: "cordoned"}))
	c.await("no-network", "creation missed NetworkFailed")
	c.await("cordoned", "creation missed NodesTaintedByFaults")
}

// serve builds tracecenter, and starts it with a promised time shorter than the longest hook.
func (c *traced) serve() {
	c.t.Helper()
	repo, err := harness.Repo()
	if err != nil {
		c.t.Fatal(err)
	}
	program := filepath.Join(c.dir, "tracecenter")
	if out, err := exec.CommandContext(c.t.Context(), "go", "build", "-C", repo, "-o", program,
		"./cmd/tracecenter").CombinedOutput(); err != nil {
		c.t.Fatalf("%v: %s", err, out)
	}
	cmd := exec.Command(program, "serve", "--kubeconfig", c.Paths.AdminKubeconfig, "--dir", filepath.Join(c.dir, "data"), "--listen", c.on,
		"--promised", "38s")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	err = harness.WaitFor(c.t.Context(), "tracecenter to be ready", func() error {
		answer, err := http.Get("http://" + c.on + "/readyz")
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return errors.New(answer.Status)
		}
		return nil
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *traced) apply(manifest string) {
	c.t.Helper()
	if err := c.KubectlApply(c.t.Context(), manifest); err != nil {
		c.t.Fatal(err)
	}
}

// pod returns the manifest of a case. A registry of its own serves its image, if it has one.
func (c *traced) pod(r realCase) string {
	image := ""
	if r.replies != nil {
		server := &http.Server{Addr: loopback.Free(c.t), Handler: r.replies, ReadHeaderTimeout: time.Minute}
		go func() { _ = server.ListenAndServe() }()
		c.t.Cleanup(func() { _ = server.Close() })
		r.main, image = `"imagePullPolicy":"Always"`, server.Addr+"/team/app:1"
	}
	container := fields{"name": "main", "image": lab.BusyboxImage, "imagePullPolicy": "Never",
		"command": []string{"sleep", "100000"}}
	spec := fields{"terminationGracePeriodSeconds": 1, "containers": []any{container}}
	meta := fields{"name": r.name, "namespace": "reasons"}
	for into, text := range map[*fields]string{&container: r.main, &spec: r.spec, &meta: r.meta} {
		if err := json.Unmarshal([]byte("{"+text+"}"), into); err != nil {
			c.t.Fatal(err)
		}
	}
	if image != "" {
		container["image"] = image
	}
	return c.text(fields{"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
}

type fields = map[string]any

func (c *traced) text(o fields) string {
	text, err := json.Marshal(o)
	if err != nil {
		c.t.Fatal(err)
	}
	return string(text)
}

// owner returns a ReplicaSet whose pods are refused.
func (c *traced) owner(in string) string {
	labels := fields{"app": "owner"}
	return c.text(fields{"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": fields{"name": "owner",
		"namespace": in}, "spec": fields{
		"replicas": 1, "selector": fields{"matchLabels": labels}, "template": fields{"metadata": fields{"labels": labels},
			"spec": fields{"containers": []any{fields{"name": "main", "image": lab.BusyboxImage}}}}}})
}

// await waits for a verdict; the first other one is the failure.
func (c *traced) await(name, want string) {
	c.t.Helper()
	if !strings.Contains(name, "/") {
		name = "reasons/" + name
	}
	kind, _, _ := strings.Cut(want, " ")
	var got string
	err := harness.WaitFor(c.t.Context(), name+" to be judged", func() (err error) {
		got, err = c.verdict(name, kind)
		return err
	})
	if err != nil || got != want {
		c.t.Errorf("%s: %s, want %s: %v", name, got, want, err)
		return
	}
	c.t.Logf("%-28s %s", name, got)
}

// verdict returns the verdict of an act, and its reason.
func (c *traced) verdict(name, kind string) (string, error) {
	token, err := os.ReadFile(filepath.Join(c.dir, "data", "token"))
	if err != nil {
		return "", err
	}
	request, err := http.NewRequestWithContext(c.t.Context(), http.MethodGet, "http://"+c.on+"/v1/pods/"+name, nil)
	if err != nil {
		return "", err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	var pod struct {
		Acts []struct{ Act, Outcome, Reason string }
	}
	if err := json.NewDecoder(answer.Body).Decode(&pod); err != nil {
		return "", err
	}
	for _, a := range pod.Acts {
		if a.Act == kind && a.Outcome != "" {
			return strings.TrimSpace(a.Act + " " + a.Outcome + " " + a.Reason), nil
		}
	}
	return "", fmt.Errorf("no verdict: %+v", pod.Acts)
}

// clean removes all objects, and makes the node schedulable.
func (c *traced) clean() {
	ctx := context.WithoutCancel(c.t.Context())
	for _, args := range [][]string{
		{"uncordon", c.NodeName},
		{"patch", "pod", "-n", "reasons", "finalizer", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`},
		{"delete", "namespace", "reasons", "reasons-quota", "reasons-security", "reasons-webhook", "--ignore-not-found"},
		{"delete", "validatingwebhookconfiguration/reasons-webhook", "runtimeclass/none", "--ignore-not-found"},
	} {
		if out, err := c.Kubectl(ctx, args...); err != nil && !strings.Contains(err.Error(), "NotFound") {
			c.t.Errorf("%v: %s %v", args, out, err)
		}
	}
}
