package podfacts_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/podfacts"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

const (
	uid     = "00000000-0000-4000-8000-000000000001"
	earlier = "00000000-0000-4000-8000-000000000002"
)

// node is a machine on which only the sources set by a test answer.
func node(t *testing.T) *host.Host {
	t.Helper()
	root := t.TempDir()
	hosttest.Write(t, root, "proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"+
		"30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	return &host.Host{NodeName: "n1", Files: host.Files{Root: root}, Paths: discover.DefaultPaths(), Clock: host.Now}
}

// starting is a pod that waits for two volumes.
func starting() corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: uid},
		Spec: corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "app", VolumeMounts: []corev1.VolumeMount{
			{Name: "settings"}, {Name: "data"}}}}, Volumes: []corev1.Volume{
			{Name: "settings", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "web"}}}},
			{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
				ClaimName: "data-web-0"}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
}

func has(pods ...corev1.Pod) func(context.Context, string, string) ([]corev1.Pod, error) {
	return func(context.Context, string, string) ([]corev1.Pod, error) { return pods, nil }
}

func sandbox(id, uid string) *cri.PodSandbox {
	return &cri.PodSandbox{Id: id, Metadata: &cri.PodSandboxMetadata{Namespace: "shop", Name: "web-0", Uid: uid}}
}

// For a pod with missing volumes, only the objects that they need are requested.
func TestVolumesAreFollowed(t *testing.T) {
	h := node(t)
	if err := os.MkdirAll(h.Files.Path("/var/lib/kubelet/pods/"+uid+"/volumes"), 0o755); err != nil {
		t.Fatal(err)
	}
	h.Cluster.PodsNamed = has(starting())
	h.Cluster.CSINode = func(context.Context) (*storagev1.CSINode, error) { return &storagev1.CSINode{}, nil }
	var asked []string
	look := podfacts.Lookups{
		Exists: func(_ context.Context, kind, namespace, name string) (bool, error) {
			asked = append(asked, kind+" "+namespace+"/"+name)
			return false, nil
		},
		Claim: func(_ context.Context, _, name string) (*corev1.PersistentVolumeClaim, error) {
			asked = append(asked, "claim "+name)
			return &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv-1"},
				Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound}}, nil
		},
		Volume: func(_ context.Context, name string) (*corev1.PersistentVolume, error) {
			asked = append(asked, "volume "+name)
			csi := &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}
			return &corev1.PersistentVolume{Spec: corev1.PersistentVolumeSpec{
				PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: csi}}}, nil
		},
		Attachment: func(_ context.Context, name string) (*storagev1.VolumeAttachment, error) {
			asked = append(asked, "attachment "+name[:8])
			return &storagev1.VolumeAttachment{}, nil
		},
	}
	f := podfacts.Gather(t.Context(), h, look, "shop", "web-0")
	if diff := cmp.Diff([]string{"configmap shop/web", "claim data-web-0", "volume pv-1", "attachment csi-bf00"},
		asked); diff != "" {
		t.Error(diff)
	}
	if a := podstage.Evaluate(f); a.Stage != podstage.CouldNotTell { // the runtime is not configured
		t.Errorf("%s: %s", a.Stage, a.Blocker)
	}
	f.Runtime.Err = nil
	if a := podstage.Evaluate(f); a.Stage != podstage.Volumes || !strings.Contains(a.Blocker, "ConfigMap shop/web") {
		t.Errorf("%s: %s", a.Stage, a.Blocker)
	}
	if c := f.Claims[0]; c.Driver != "d.example.com" || c.Attached || c.Attachment == "" || !f.Drivers.Asked {
		t.Errorf("claim %+v, drivers %+v", c, f.Drivers)
	}
}

// Objects of an earlier pod of the same name are not taken for the pod's.
func TestEarlierPodOfTheName(t *testing.T) {
	h := node(t)
	pod, old := starting(), starting()
	old.UID = earlier
	h.Cluster.PodsNamed = has(pod)
	h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return []corev1.Pod{old}, nil }
	h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
		return []*cri.PodSandbox{sandbox("1", earlier), {Id: "2", Metadata: &cri.PodSandboxMetadata{Name: "web-1"}}}, nil
	}
	h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, nil }
	f := podfacts.Gather(t.Context(), h, podfacts.Lookups{}, "shop", "web-0")
	if f.UID != uid || len(f.Runtime.Sandboxes) > 0 || f.Kubelet.Pod != nil || !cmp.Equal(f.Earlier, []string{earlier}) {
		t.Errorf("UID %s, %d sandboxes, kubelet %v, earlier %v", f.UID, len(f.Runtime.Sandboxes), f.Kubelet.Pod, f.Earlier)
	}
}

// A pod unknown to all sources is found by its leftovers.
func TestLeftBehindIsFound(t *testing.T) {
	for name, set := range map[string]func(h *host.Host){
		"sandbox": func(h *host.Host) {
			h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
				return []*cri.PodSandbox{sandbox("1", uid)}, nil
			}
		},
		"directory": func(h *host.Host) {
			hosttest.Write(t, h.Files.Root, "var/log/pods/shop_web-0_"+uid+"/app/0.log", "")
			hosttest.Write(t, h.Files.Root, "var/lib/kubelet/pods/"+uid+"/etc-hosts", "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := node(t)
			h.Cluster.PodsNamed = has()
			h.Cluster.Pod = func(context.Context, string, string) (*corev1.Pod, error) { return nil, errors.New("forbidden") }
			h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) { return nil, nil }
			h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, nil }
			set(h)
			a := podstage.Evaluate(podfacts.Gather(t.Context(), h, podfacts.Lookups{}, "shop", "web-0"))
			if a.Stage != podstage.LeftBehind || a.UID != uid {
				t.Errorf("%s %s: %s", a.UID, a.Stage, a.Blocker)
			}
		})
	}
}

// A volume still mounted is held by a process of another pod, which is named.
func TestHolderIsNamed(t *testing.T) {
	h := node(t)
	point := "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~empty-dir/v"
	hosttest.Write(t, h.Files.Root, "proc/1/mountinfo", "22 1 8:1 / / rw - ext4 /dev/sda1 rw\n"+
		"30 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n31 22 0:50 / "+point+" rw - tmpfs tmpfs rw\n")
	hosttest.Write(t, h.Files.Root, "proc/77/stat", "77 (backup) S 1 77 77 0 -1 1077936384 1 0 0 0 10 10 0 0 20 0 1 0 "+
		"1000 1 1\n")
	hosttest.Write(t, h.Files.Root, "proc/77/cgroup", "0::/kubepods/besteffort/pod"+earlier+"/x\n")
	for name, target := range map[string]string{"self/ns/mnt": "mnt:[1]", "77/ns/mnt": "mnt:[1]", "77/cwd": point,
		"77/root": "/", "77/exe": "/bin/backup"} {
		hosttest.Write(t, h.Files.Root, "proc/"+name+".x", "")
		if err := os.Symlink(target, h.Files.Path("/proc/"+name)); err != nil {
			t.Fatal(err)
		}
	}
	pod := starting()
	pod.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	h.Cluster.PodsNamed = has(pod)
	h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) {
		return []*cri.PodSandbox{{Id: "9", Metadata: &cri.PodSandboxMetadata{Namespace: "ops", Name: "backup-x",
			Uid: earlier}}}, nil
	}
	h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, nil }
	a := podstage.Evaluate(podfacts.Gather(t.Context(), h, podfacts.Lookups{}, "shop", "web-0"))
	if a.Stage != podstage.EndVolumes || a.Holder != "pid 77 backup (cwd), of pod ops/backup-x" {
		t.Errorf("%s: %s; held by %q", a.Stage, a.Blocker, a.Holder)
	}
}

// Sources that hang are named, and the answer comes in time.
func TestNothingHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := node(t)
		hang := func() error { time.Sleep(time.Hour); return errors.New("too late") }
		h.Cluster.PodsNamed = func(context.Context, string, string) ([]corev1.Pod, error) { return nil, hang() }
		h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, hang() }
		h.Runtime.Sandboxes = func(context.Context) ([]*cri.PodSandbox, error) { return nil, hang() }
		h.Runtime.Containers = func(context.Context) ([]*cri.Container, error) { return nil, hang() }
		began := time.Now()
		a := podstage.Evaluate(podfacts.Gather(t.Context(), h, podfacts.Lookups{}, "shop", "web-0"))
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("took %s", took)
		}
		if a.Verdict != podstage.Unknown || !strings.Contains(a.Blocker, "no answer within 4s") {
			t.Errorf("%s: %s", a.Verdict, a.Blocker)
		}
		time.Sleep(2 * time.Hour) // the abandoned calls end
	})
}

// A client that obeys its context returns an error of its own, which does not name the limit.
func TestLimitIsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := node(t)
		h.Cluster.PodsNamed = func(ctx context.Context, _, _ string) ([]corev1.Pod, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		h.Kubelet.Pods = func(context.Context) ([]corev1.Pod, error) { return nil, errors.New("no") }
		a := podstage.Evaluate(podfacts.Gather(t.Context(), h, podfacts.Lookups{}, "shop", "web-0"))
		if a.Verdict != podstage.Unknown || !strings.Contains(a.Blocker, "no answer within 4s") {
			t.Errorf("%s: %s", a.Verdict, a.Blocker)
		}
	})
}
