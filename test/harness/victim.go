package harness

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/test/lab"
)

// victimManifest is a pod that kubelet cannot clean up completely once it has lost sight of it: a subPath of a hostPath
// volume stays mounted after a restart of kubelet (kubernetes/kubernetes#135698).
const victimManifest = `
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, namespace: %[4]s, labels: %[5]s, annotations: %[6]s}
spec:
  terminationGracePeriodSeconds: 1%[3]s
  containers:
  - name: app
    image: localhost/busybox:1
    imagePullPolicy: Never
    command: ["sleep", "100000"]
    volumeMounts:
    - {name: data, mountPath: /data, subPath: sub}
    - {name: scratch, mountPath: /scratch}
  volumes:
  - name: data
    hostPath: {path: %[2]s, type: DirectoryOrCreate}
  - name: scratch
    emptyDir: {medium: Memory}
`

// Victim is a pod that leaves objects behind.
type Victim struct {
	Lab    *lab.Lab
	Name   string
	UID    string
	Data   string // folder on the host that the pod mounts: user data
	Canary string // a file in it that must survive everything

	manifest string // of a static pod
	about    About
}

// About has further metadata of a pod.
type About struct {
	Namespace           string // which must exist; default: "default"
	Labels, Annotations map[string]string
}

// NewVictim runs the pod and puts a canary into the folder that it mounts. Settings are further lines of its
// specification, for example "hostNetwork: true".
func NewVictim(ctx context.Context, l *lab.Lab, name string, settings ...string) (*Victim, error) {
	return NewVictimAbout(ctx, l, About{}, name, settings...)
}

// NewVictimAbout is the same with labels, annotations or another namespace.
func NewVictimAbout(ctx context.Context, l *lab.Lab, about About, name string, settings ...string) (*Victim, error) {
	v := &Victim{Lab: l, Name: name, Data: filepath.Join(l.Dir, "data-of-"+name), about: about}
	if err := l.KubectlApply(ctx, v.text(settings...)); err != nil {
		return nil, err
	}
	pod, err := l.WaitPodRunning(ctx, v.namespace(), v.Name)
	if err != nil {
		return nil, err
	}
	v.UID = pod.UID
	return v, v.putCanary()
}

// NewStaticVictim is the same with a static pod, which has a mirror pod in the apiserver. Its UID is the one on the
// node.
func NewStaticVictim(ctx context.Context, l *lab.Lab, name string, settings ...string) (*Victim, error) {
	v := &Victim{Lab: l, Name: name, Data: filepath.Join(l.Dir, "data-of-"+name),
		manifest: filepath.Join(l.Paths.StaticPodDir, name+".yaml")}
	if err := os.WriteFile(v.manifest, []byte(v.text(settings...)), 0o600); err != nil {
		return nil, err
	}
	v.Name += "-" + l.NodeName
	_, err := l.WaitPodRunning(ctx, "default", v.Name)
	if err != nil {
		return nil, err
	}
	uid, err := l.Kubectl(ctx, "get", "pod", v.Name, "-o",
		`jsonpath={.metadata.annotations.kubernetes\.io/config\.mirror}`)
	if err != nil {
		return nil, err
	}
	if v.UID = string(uid); len(v.UID) != 32 {
		return nil, fmt.Errorf("the mirror %s names the pod %q", v.Name, v.UID)
	}
	return v, v.putCanary()
}

func (v *Victim) text(settings ...string) string {
	lines := ""
	for _, line := range settings {
		lines += "\n  " + line
	}
	labels, _ := json.Marshal(v.about.Labels)
	annotations, _ := json.Marshal(v.about.Annotations)
	return fmt.Sprintf(victimManifest, v.Name, v.Data, lines, v.namespace(), labels, annotations)
}

func (v *Victim) namespace() string { return cmp.Or(v.about.Namespace, "default") }

func (v *Victim) putCanary() error {
	v.Canary = filepath.Join(v.Data, "sub", "canary")
	return os.WriteFile(v.Canary, []byte("user data of "+v.Name+"\n"), 0o600)
}

// Delete deletes the pod, like its owner.
func (v *Victim) Delete(ctx context.Context) error {
	if v.manifest != "" {
		return os.Remove(v.manifest)
	}
	return v.Lab.DeletePod(ctx, v.namespace(), v.Name)
}

// Abandon lets the pod disappear from the apiserver while kubelet is down, with its processes frozen: when kubelet is
// back, neither it nor the runtime can end them, so all objects of the pod stay.
func (v *Victim) Abandon(ctx context.Context) error { return Abandon(ctx, v) }

// Abandon abandons several pods of one lab.
func Abandon(ctx context.Context, victims ...*Victim) error {
	l := victims[0].Lab
	if err := l.Stop(ctx, "kubelet"); err != nil {
		return err
	}
	for _, v := range victims {
		if v.manifest != "" {
			if err := os.Remove(v.manifest); err != nil {
				return err
			}
		}
		if err := v.forceDelete(ctx); err != nil {
			return err
		}
		if err := v.Freeze("FROZEN"); err != nil {
			return err
		}
	}
	return l.Start(ctx, "kubelet")
}

// LeaveMounts lets pods of one lab disappear in the same way, but with processes that can be ended: when kubelet is
// back it ends them, and their mounts and directories stay.
func LeaveMounts(ctx context.Context, victims ...*Victim) error {
	l := victims[0].Lab
	if err := l.Stop(ctx, "kubelet"); err != nil {
		return err
	}
	for _, v := range victims {
		if err := v.forceDelete(ctx); err != nil {
			return err
		}
	}
	return l.Start(ctx, "kubelet")
}

func (v *Victim) forceDelete(ctx context.Context) error {
	_, err := v.Lab.Kubectl(ctx, "delete", "pod", "-n", v.namespace(), v.Name, "--force", "--grace-period=0")
	return err
}

// Freeze sets the freezer of the pod's cgroup (v1: FROZEN or THAWED; v2 has 1 and 0).
func (v *Victim) Freeze(state string) error {
	dirs, err := v.Lab.PodCgroups(v.UID)
	if err != nil {
		return err
	}
	// If both exist, on a hybrid machine, one of them thaws the processes that it has frozen, and the other does not.
	for _, freezer := range []struct{ file, value string }{{"freezer.state", state},
		{"cgroup.freeze", map[string]string{"FROZEN": "1", "THAWED": "0"}[state]}} {
		for _, dir := range dirs {
			name := filepath.Join(dir, freezer.file)
			if _, err := os.Stat(name); err == nil {
				return os.WriteFile(name, []byte(freezer.value), 0o600)
			}
		}
	}
	return fmt.Errorf("no freezer cgroup of pod %s", v.UID)
}

// CheckCanary fails if the pod's data on the host have changed.
func (v *Victim) CheckCanary() error {
	data, err := os.ReadFile(v.Canary)
	if err == nil && string(data) != "user data of "+v.Name+"\n" {
		err = fmt.Errorf("%s: %q", v.Canary, data)
	}
	return err
}

// Traces lists the pod's objects on the node, which all carry its UID.
func (v *Victim) Traces(ctx context.Context) ([]string, error) {
	traces, err := v.Lab.PodCgroups(v.UID)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(v.Lab.Paths.KubeletRoot, "pods", v.UID)
	if _, err := os.Lstat(dir); err == nil {
		traces = append(traces, dir)
	}
	attachments, err := v.attachments()
	if err != nil {
		return nil, err
	}
	traces = append(traces, attachments...)
	if v.Lab.Paths.CRIODir != "" {
		ofCRI, err := v.inCRI(ctx)
		return append(traces, ofCRI...), err
	}
	ids, err := output(ctx, v.Lab.Paths.Ctr, "-a", v.Lab.Paths.ContainerdSocket, "-n", "k8s.io", "containers", "list",
		"-q", "labels.\"io.kubernetes.pod.uid\"=="+v.UID)
	if err != nil {
		return nil, err
	}
	if ids != "" {
		traces = append(traces, "containers "+ids)
	}
	return traces, nil
}

// inCRI lists the sandbox and the containers of the pod in the runtime.
func (v *Victim) inCRI(ctx context.Context) (traces []string, err error) {
	runtime, closer, err := cri.NewRuntime(v.Lab.Paths.CRISocket)
	if err != nil {
		return nil, err
	}
	defer closer.Close()
	sandboxes, err := runtime.Sandboxes(ctx)
	for _, s := range sandboxes {
		if s.GetMetadata().GetUid() == v.UID {
			traces = append(traces, "sandbox "+s.GetId())
		}
	}
	containers, containersErr := runtime.Containers(ctx)
	for _, c := range containers {
		if c.GetLabels()["io.kubernetes.pod.uid"] == v.UID {
			traces = append(traces, "container "+c.GetId())
		}
	}
	return traces, errors.Join(err, containersErr)
}

// attachments lists the cached CNI results of the pod.
func (v *Victim) attachments() ([]string, error) {
	files, err := filepath.Glob(v.Lab.Paths.CNICacheDir + "/results/*")
	if err != nil {
		return nil, err
	}
	var found []string
	for _, file := range files {
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if bytes.Contains(data, []byte(v.UID)) {
			found = append(found, file)
		}
	}
	return found, nil
}

// settle is how long kubelet gets to show that it cannot clean up by itself.
const settle = 10 * time.Second

// WaitStuck waits until kubelet has had its chance and objects are still there.
func (v *Victim) WaitStuck(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(settle):
	}
	traces, err := v.Traces(ctx)
	if err == nil && len(traces) == 0 {
		err = fmt.Errorf("kubelet has cleared up everything of pod %s by itself", v.UID)
	}
	return err
}
