package filesystemreadonly

import (
	"errors"
	"os"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/pkg/detect/storage/filesystem/filesystemtest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/test/need"
)

func TestRealExt4Error(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	disk := n.Path("disk")
	const uid = "0d2f1a64-8f1e-4b5e-9b5a-0123456789ab"
	ext4.Mount(disk, "errors=remount-ro")
	ext4.Bind(disk, n.Path("bind"), true)
	ext4.Bind(disk, n.Path("kubelet/pods/"+uid+"/volume-subpaths/a"), true)
	n.Expect()

	ext4.TriggerError()
	reason := reasonEmergencyRO
	if !n.SuperOption(disk, "emergency_ro") {
		reason = reasonRemountedRO // before Linux 6.15
	}
	got := n.Expect([3]string{"disk", "fatal", reason})
	if len(got) == 1 && (got[0].Facts["pods"] != uid || got[0].Facts["mountPoints"] != "3") {
		t.Errorf("facts: %v", got[0].Facts)
	}
	if err := os.WriteFile(n.Path("disk/x"), nil, 0o600); err == nil {
		t.Error("the filesystem still takes writes")
	}

	ext4.Unmount(n.Path("kubelet/pods/" + uid + "/volume-subpaths/a"))
	ext4.Unmount(n.Path("bind"))
	ext4.Unmount(disk)
	n.Expect()
	ext4.Released()
	ext4.Mount(disk, "errors=remount-ro") // takes writes, but its errors were never checked
	n.Expect([3]string{"disk", "warning", reasonErrors})
	ext4.Unmount(disk)
	ext4.Released()
	ext4.Check()
	ext4.Mount(disk, "errors=remount-ro")
	n.Expect()
}

func TestRealExt4ErrorsContinue(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	ext4.Mount(n.Path("disk"), "errors=continue")
	ext4.TriggerError()
	n.Expect([3]string{"disk", "warning", reasonErrors})
	ext4.Remount(n.Path("disk"), "ro") // a person remounts: no new fault
	n.Expect([3]string{"disk", "warning", reasonErrors})
}

func TestRealExt4Shutdown(t *testing.T) {
	ext4, n := hosttest.NewLoopFS(t, "ext4"), filesystemtest.NewRealNode(t, New(DefaultSettings())) // staged for no pod
	ext4.Mount(n.Path("kubelet/plugins/driver/globalmount"), "rw")
	ext4.Shutdown(n.Path("kubelet/plugins/driver/globalmount"))
	shown := n.SuperOption(n.Path("kubelet/plugins/driver/globalmount"), "shutdown")
	need.Has(t, shown, "Linux 6.15: ext4 shows that it was shut down")
	n.Expect([3]string{"kubelet/plugins/driver/globalmount", "warning", reasonShutdown})
}

func TestRealXFSShutdown(t *testing.T) {
	xfs, n := hosttest.NewLoopFS(t, "xfs"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	wanted := DefaultSettings()
	wanted.Needed = []string{n.Dir + "/"}
	n.Check = New(wanted)
	xfs.Mount(n.Path("disk"), "rw")
	xfs.Bind(n.Path("disk"), n.Path("disk-again"), false) // a longer name: the other one is the subject
	n.Expect()
	xfs.Shutdown(n.Path("disk"))
	if got := n.Expect([3]string{"disk", "fatal", reasonShutdown}); len(got) == 1 && got[0].Facts["neededBy"] != "the configuration" {
		t.Errorf("facts: %v", got[0].Facts)
	}
	n.Check = New(DefaultSettings())
	n.Expect([3]string{"disk", "warning", reasonShutdown})
	wanted.Needed = []string{n.Path("dis"), n.Path("disk/below")}
	n.Check = New(wanted)
	n.Expect([3]string{"disk", "warning", reasonShutdown})
	xfs.Unmount(n.Path("disk-again"))
	xfs.Unmount(n.Path("disk"))
	n.Expect()
	xfs.Released()
	xfs.Mount(n.Path("disk"), "rw") // replays its log
	n.Expect()
}

func TestRealXFSLosesItsDisk(t *testing.T) {
	xfs, n := hosttest.NewLoopFS(t, "xfs"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	xfs.Mount(n.Path("disk"), "rw")
	n.Expect()
	xfs.Shrink(0)
	n.Expect([3]string{"disk", "warning", reasonDeviceGone}) // an unused loop mount
}

func TestRealBtrfsForcedReadOnly(t *testing.T) {
	btrfs, n := hosttest.NewLoopFS(t, "btrfs"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	btrfs.Mount(n.Path("disk"), "rw")
	n.Expect()
	btrfs.Shrink(1 << 20)
	file, err := os.Create(n.Path("disk/x"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Sync(); err == nil {
		t.Fatal("the disk still takes writes")
	}
	n.Expect([3]string{"disk", "warning", reasonRemountedRO}) // an unused loop mount
}

// A filesystem that a person made read-only is no fault.
func TestRealReadOnlyByDesign(t *testing.T) {
	for _, fstype := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			fs, n := hosttest.NewLoopFS(t, fstype), filesystemtest.NewRealNode(t, New(DefaultSettings()))
			fs.Mount(n.Path("disk"), "ro")
			n.Expect()
			fs.Remount(n.Path("disk"), "rw")
			fs.Bind(n.Path("disk"), n.Path("bind"), true)
			n.Expect()
			fs.Unmount(n.Path("bind"))
			fs.Remount(n.Path("disk"), "ro")
			n.Expect()
		})
	}
}

// The check does not touch other filesystems: a dead server does not delay the run, nor start any probe.
func TestRealHungFUSE(t *testing.T) {
	n := filesystemtest.NewRealNode(t, New(DefaultSettings()))
	hosttest.HangingFUSE(t)
	n.Host.Prober = probe.Prober{}
	findings, err := n.Check.Run(t.Context(), n.Host)
	if _, isPartial := errors.AsType[*finding.PartialError](err); err != nil && !isPartial {
		t.Fatal(findings, err)
	}
}

// A volume of a pod alone is fatal, or a warning if podVolumesFatal is off; the node's own directories stay fatal.
func TestRealPodVolume(t *testing.T) {
	const uid = "0d2f1a64-8f1e-4b5e-9b5a-0123456789ab"
	ext4, n := hosttest.NewLoopFS(t, "ext4"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
	volume := "kubelet/pods/" + uid + "/volumes/kubernetes.io~csi/v/mount"
	ext4.Mount(n.Path(volume), "errors=remount-ro")
	n.Expect()
	ext4.TriggerError()
	reason := reasonEmergencyRO
	if !n.SuperOption(n.Path(volume), "emergency_ro") {
		reason = reasonRemountedRO // before Linux 6.15
	}
	n.Expect([3]string{volume, "fatal", reason})
	off := DefaultSettings()
	off.PodVolumesFatal = false
	n.Check = New(off)
	n.Expect([3]string{volume, "warning", reason})
	n.Host.Paths.ContainerdRoot = n.Path(volume + "/containerd")
	n.Expect([3]string{volume, "fatal", reason})
}

// A pod that loses its container because of the fault, and so its mount, still needs the filesystem: until it has finished, or
// kubelet has forgotten it. While kubelet does not answer, it counts as before.
func TestRealPodThatCrashesForIt(t *testing.T) {
	const uid = "0d2f1a64-8f1e-4b5e-9b5a-0123456789ab"
	pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "db", UID: uid}}
	finished := *pod.DeepCopy()
	finished.Status.Phase = corev1.PodSucceeded
	for name, test := range map[string]struct {
		pods []corev1.Pod
		err  error
		want string
	}{
		"it waits for its next start": {[]corev1.Pod{pod}, nil, "fatal"},
		"kubelet does not answer":     {nil, errors.New("no answer"), "fatal"},
		"it has finished":             {[]corev1.Pod{finished}, nil, "warning"},
		"it is deleted":               {nil, nil, "warning"},
	} {
		t.Run(name, func(t *testing.T) {
			ext4, n := hosttest.NewLoopFS(t, "ext4"), filesystemtest.NewRealNode(t, New(DefaultSettings()))
			n.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod{pod}, nil)
			volume := n.Path("kubelet/pods/" + uid + "/volumes/kubernetes.io~local-volume/pv")
			ext4.Mount(n.Path("disk"), "errors=remount-ro")
			ext4.Bind(n.Path("disk"), volume, false)
			ext4.TriggerError()
			reason := reasonEmergencyRO
			if !n.SuperOption(n.Path("disk"), "emergency_ro") {
				reason = reasonRemountedRO // before Linux 6.15
			}
			n.Expect([3]string{"disk", "fatal", reason})
			ext4.Unmount(volume)
			n.Host.Kubelet.Pods = hosttest.Answer(test.pods, test.err)
			got := n.Expect([3]string{"disk", test.want, reason})
			if test.want == "fatal" && (len(got) != 1 || got[0].Facts["pods"] != "default/db" || got[0].Facts["neededBy"] != "pods") {
				t.Errorf("%+v", got)
			}
			n.Expect([3]string{"disk", test.want, reason})
			ext4.Unmount(n.Path("disk"))
			n.Expect()
		})
	}
}
