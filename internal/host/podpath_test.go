package host_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
)

func TestPodOfCgroup(t *testing.T) {
	tests := []struct {
		name, root, driver, path string
		uid, container           string // uid empty: not a pod's
	}{
		{"cgroupfs, burstable", "/", "", "/kubepods/burstable/pod" + hosttest.PodUID, hosttest.PodUID, ""},
		{"cgroupfs, container", "/", "cgroupfs", "/kubepods/besteffort/pod" + hosttest.PodUID + "/" +
			hosttest.ContainerID, hosttest.PodUID, hosttest.ContainerID},
		{"cgroupfs, guaranteed", "/", "", "/kubepods/pod" + hosttest.PodUID, hosttest.PodUID, ""},
		{"cgroupfs, below a container", "/", "", "/kubepods/pod" + hosttest.PodUID + "/" + hosttest.ContainerID +
			"/init", hosttest.PodUID, hosttest.ContainerID},
		{"static pod", "/", "", "/kubepods/burstable/pod" + hosttest.StaticUID, hosttest.StaticUID, ""},
		{"systemd, burstable", "/", "", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" +
			hosttest.UnderUID + ".slice", hosttest.PodUID, ""},
		{"systemd, guaranteed, containerd", "", "systemd", "/kubepods.slice/kubepods-pod" + hosttest.UnderUID +
			".slice/cri-containerd-" + hosttest.ContainerID + ".scope", hosttest.PodUID, hosttest.ContainerID},
		{"systemd, cri-o", "/", "", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" +
			hosttest.UnderUID + ".slice/crio-" + hosttest.ContainerID + ".scope", hosttest.PodUID,
			hosttest.ContainerID},
		{"systemd, cri-o's monitor", "/", "", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" +
			hosttest.UnderUID + ".slice/crio-conmon-" + hosttest.ContainerID + ".scope", hosttest.PodUID,
			hosttest.ContainerID},
		{"cgroupfs, cri-o", "/", "", "/kubepods/besteffort/pod" + hosttest.PodUID + "/crio-" + hosttest.ContainerID,
			hosttest.PodUID, hosttest.ContainerID},
		{"cgroupfs, cri-o's monitor", "/", "", "/kubepods/besteffort/pod" + hosttest.PodUID + "/crio-conmon-" +
			hosttest.ContainerID, hosttest.PodUID, hosttest.ContainerID},
		{"own root", "/lab", "", "/lab/kubepods/burstable/pod" + hosttest.PodUID, hosttest.PodUID, ""},
		{"own root, systemd", "/lab-a", "",
			"/lab_a.slice/lab_a-kubepods.slice/lab_a-kubepods-burstable.slice/lab_a-kubepods-burstable-pod" +
				hosttest.UnderUID + ".slice", hosttest.PodUID, ""},
		{"outlived its cgroup", "/", "", "/kubepods/pod" + hosttest.PodUID + " (deleted)", hosttest.PodUID, ""},
		{"a kubepods tree below a container belongs to the outer pod", "/", "", "/kubepods/pod" + hosttest.PodUID +
			"/" + hosttest.ContainerID + "/kubepods/burstable/pod" + hosttest.StaticUID, hosttest.PodUID,
			hosttest.ContainerID},

		{"a kubepods tree below another container", "/", "", "/docker/" + hosttest.ContainerID +
			"/kubepods/burstable/pod" + hosttest.PodUID, "", ""},
		{"of kind, below its node's cgroup", "/", "", "/docker/" + hosttest.ContainerID +
			"/kubelet/kubepods/burstable/pod" + hosttest.PodUID, "", ""},
		{"of kind, in slices", "/", "", "/docker/" + hosttest.ContainerID +
			"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + hosttest.UnderUID + ".slice", "", ""},
		{"of a kubelet with a root of its own", "/", "", "/kubelet/kubepods/burstable/pod" + hosttest.PodUID, "", ""},
		{"of one in slices", "/", "", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + hosttest.UnderUID +
			".slice", "", ""},
		{"a kubepods tree of another root", "/lab", "", "/kubepods/burstable/pod" + hosttest.PodUID, "", ""},
		{"other driver", "/", "systemd", "/kubepods/burstable/pod" + hosttest.PodUID, "", ""},
		{"other driver, systemd", "/", "cgroupfs", "/kubepods.slice/kubepods-pod" + hosttest.UnderUID + ".slice", "",
			""},
		{"class", "/", "", "/kubepods/burstable", "", ""},
		{"no UID", "/", "", "/kubepods/podman", "", ""},
		{"upper case", "/", "", "/kubepods/pod" + strings.ToUpper(hosttest.PodUID), "", ""},
		{"slice of a wrong class", "/", "", "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod" +
			hosttest.UnderUID + ".slice", "", ""},
		{"dashes in a slice's UID", "/", "", "/kubepods.slice/kubepods-pod" + hosttest.PodUID + ".slice", "", ""},
		{"parent steps", "/", "", "/kubepods/../kubepods/pod" + hosttest.PodUID, "", ""},
		{"outside of our namespace", "/", "", "/../kubepods/pod" + hosttest.PodUID, "", ""},
		{"empty", "/", "", "", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			paths := host.Paths{CgroupRoot: test.root, CgroupDriver: test.driver}
			uid, id, ok := paths.PodOfCgroup(test.path)
			if uid != test.uid || id != test.container || ok != (test.uid != "") {
				t.Errorf("got %q %q %v, want %q %q", uid, id, ok, test.uid, test.container)
			}
		})
	}
}

// A unit is the pod's own slice, or the scope of a container directly below it. A container chooses the names below its
// own cgroup.
func TestUnitOfCgroup(t *testing.T) {
	slice := "kubepods-burstable-pod" + hosttest.UnderUID + ".slice"
	pod := "/kubepods.slice/kubepods-burstable.slice/" + slice
	scope := "cri-containerd-" + hosttest.ContainerID + ".scope"
	for path, want := range map[string]string{
		pod:               slice,
		pod + "/" + scope: scope,
		pod + "/crio-" + hosttest.ContainerID + ".scope":          "crio-" + hosttest.ContainerID + ".scope",
		pod + "/crio-conmon-" + hosttest.ContainerID + ".scope":   "crio-conmon-" + hosttest.ContainerID + ".scope",
		pod + "/" + scope + "/system.slice":                       "",
		pod + "/" + scope + "/" + scope:                           "",
		pod + "/" + scope + "/" + slice:                           "",
		pod + "/system.slice":                                     "",
		pod + "/kubepods.slice":                                   "",
		pod + "/docker-" + hosttest.ContainerID + ".scope":        "",
		pod + "/" + hosttest.ContainerID:                          "",
		pod + "/" + scope + " (deleted)":                          "",
		pod + " (deleted)":                                        "",
		"/kubepods/burstable/pod" + hosttest.PodUID:               "",
		"/kubepods/burstable/pod" + hosttest.PodUID + "/" + scope: "",
	} {
		place, ok := host.Paths{}.PlaceOfCgroup(path)
		if !ok || place.UID != hosttest.PodUID || place.Unit != want {
			t.Errorf("%s: %+v %v, want unit %q", path, place, ok, want)
		}
		if driver := map[bool]string{true: "systemd", false: "cgroupfs"}[strings.Contains(path,
			".slice/")]; place.Driver != driver {
			t.Errorf("%s: driver %s", path, place.Driver)
		}
	}
}

func TestPodOfPath(t *testing.T) {
	paths := host.Paths{KubeletRoot: "/var/lib/kubelet"}
	for path, want := range map[string]string{
		"/var/lib/kubelet/pods/" + hosttest.PodUID:                       hosttest.PodUID,
		"/var/lib/kubelet/pods/" + hosttest.PodUID + "/volumes/x~y/z":    hosttest.PodUID,
		"/var/lib/kubelet/pods/" + hosttest.PodUID + "/volumes//deleted": hosttest.PodUID,
		"/var/lib/kubelet/pods/" + hosttest.PodUID + "x/volumes":         "",
		"/var/lib/kubelet/pods":                                          "",
		"/var/lib/kubelet/podsx/" + hosttest.PodUID:                      "",
		"/var/lib/kubelet/pods/../plugins/" + hosttest.PodUID:            "",
		"/var/lib/kubelet": "",
		"/mnt/var/lib/kubelet/pods/" + hosttest.PodUID:                             "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/pods/" + hosttest.PodUID + "/": "",
	} {
		uid, ok := paths.PodOfPath(path)
		if ok != (want != "") || ok && uid != want {
			t.Errorf("%s: got %q %v, want %q", path, uid, ok, want)
		}
	}
}

func TestNodePodUID(t *testing.T) {
	mirror := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: hosttest.PodUID,
		Annotations: map[string]string{"kubernetes.io/config.mirror": hosttest.StaticUID}}}
	if got := host.NodePodUID(&mirror); got != hosttest.StaticUID {
		t.Errorf("mirror pod: %s", got)
	}
	if got := host.NodePodUID(
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: hosttest.PodUID}}); got != hosttest.PodUID {
		t.Errorf("pod: %s", got)
	}
}

func FuzzPodOfCgroup(f *testing.F) {
	f.Add("/", "/kubepods/burstable/pod"+hosttest.PodUID+"/"+hosttest.ContainerID)
	f.Add("/lab", "/lab.slice/lab-kubepods.slice/lab-kubepods-pod"+hosttest.UnderUID+".slice/cri-containerd-"+
		hosttest.ContainerID+".scope")
	f.Add("/a/b", "/a/b/kubepods/pod"+hosttest.StaticUID+" (deleted)")
	f.Fuzz(func(t *testing.T, root, path string) {
		paths := host.Paths{CgroupRoot: root}
		uid, id, ok := paths.PodOfCgroup(path)
		if ok != host.IsPodUID(uid) || id != "" && !host.IsContainerID(id) || !ok && (uid != "" || id != "") {
			t.Errorf("%q: %q %q %v", path, uid, id, ok)
		}
		if ok && !strings.Contains(path, "kubepods") {
			t.Errorf("%q is in no kubepods tree", path)
		}
	})
}

func FuzzPodOfPath(f *testing.F) {
	f.Add("/var/lib/kubelet", "/var/lib/kubelet/pods/"+hosttest.PodUID+"/volumes/a/b")
	f.Fuzz(func(t *testing.T, root, path string) {
		uid, ok := host.Paths{KubeletRoot: root}.PodOfPath(path)
		if ok && (!host.IsPodUID(uid) || !strings.Contains(path, uid)) {
			t.Errorf("%q: %q", path, uid)
		}
	})
}

// Only names that the runtime of this node gives count: if CRI-O does not run, its names belong to other programs.
func TestIsRuntimeNetns(t *testing.T) {
	const uuid = "8e8c99d8-5300-4cb1-8496-b2f975d2dc58"
	containerd := host.Paths{CRISocket: "/run/containerd/containerd.sock"}
	crio := host.Paths{CRISocket: "/run/crio/crio.sock"}
	for name, want := range map[string]struct{ containerd, crio bool }{
		"cni-" + uuid: {true, true}, uuid: {false, true}, "foo": {}, "cni-": {}, "": {}, "qdhcp-" + uuid: {},
		strings.ToUpper(uuid): {}, strings.ReplaceAll(uuid, "-", ""): {},
	} {
		if got := containerd.IsRuntimeNetns(name); got != want.containerd {
			t.Errorf("containerd, %q: %v", name, got)
		}
		if got := crio.IsRuntimeNetns(name); got != want.crio {
			t.Errorf("CRI-O, %q: %v", name, got)
		}
	}
}
