package host_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
)

const (
	podUID    = "0f6d4d9c-3f4e-4c3b-9a53-1d2c3b4a5e6f"
	underUID  = "0f6d4d9c_3f4e_4c3b_9a53_1d2c3b4a5e6f"
	staticUID = "5d2f3a1b9c8e7d6f5a4b3c2d1e0f9a8b"
	container = "abababababababababababababababababababababababababababababababab"
)

func TestPodOfCgroup(t *testing.T) {
	tests := []struct {
		name, root, driver, path string
		uid, container           string // uid empty: not a pod's
	}{
		{"cgroupfs, burstable", "/", "", "/kubepods/burstable/pod" + podUID, podUID, ""},
		{"cgroupfs, container", "/", "cgroupfs", "/kubepods/besteffort/pod" + podUID + "/" + container, podUID, container},
		{"cgroupfs, guaranteed", "/", "", "/kubepods/pod" + podUID, podUID, ""},
		{"cgroupfs, below a container", "/", "", "/kubepods/pod" + podUID + "/" + container + "/init", podUID, container},
		{"static pod", "/", "", "/kubepods/burstable/pod" + staticUID, staticUID, ""},
		{"systemd, burstable", "/", "", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + underUID + ".slice", podUID, ""},
		{"systemd, guaranteed, containerd", "", "systemd", "/kubepods.slice/kubepods-pod" + underUID + ".slice/cri-containerd-" + container + ".scope", podUID, container},
		{"systemd, cri-o", "/", "", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + underUID + ".slice/crio-" + container + ".scope", podUID, container},
		{"systemd, cri-o's monitor", "/", "", "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + underUID + ".slice/crio-conmon-" + container + ".scope", podUID, container},
		{"own root", "/lab", "", "/lab/kubepods/burstable/pod" + podUID, podUID, ""},
		{"own root, systemd", "/lab-a", "", "/lab_a.slice/lab_a-kubepods.slice/lab_a-kubepods-burstable.slice/lab_a-kubepods-burstable-pod" + underUID + ".slice", podUID, ""},
		{"outlived its cgroup", "/", "", "/kubepods/pod" + podUID + " (deleted)", podUID, ""},
		{"a kubepods tree below a container belongs to the outer pod", "/", "", "/kubepods/pod" + podUID + "/" + container + "/kubepods/burstable/pod" + staticUID, podUID, container},

		{"a kubepods tree below another container", "/", "", "/docker/" + container + "/kubepods/burstable/pod" + podUID, "", ""},
		{"of kind, below its node's cgroup", "/", "", "/docker/" + container + "/kubelet/kubepods/burstable/pod" + podUID, "", ""},
		{"of kind, in slices", "/", "", "/docker/" + container + "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + underUID + ".slice", "", ""},
		{"of a kubelet with a root of its own", "/", "", "/kubelet/kubepods/burstable/pod" + podUID, "", ""},
		{"of one in slices", "/", "", "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod" + underUID + ".slice", "", ""},
		{"a kubepods tree of another root", "/lab", "", "/kubepods/burstable/pod" + podUID, "", ""},
		{"other driver", "/", "systemd", "/kubepods/burstable/pod" + podUID, "", ""},
		{"other driver, systemd", "/", "cgroupfs", "/kubepods.slice/kubepods-pod" + underUID + ".slice", "", ""},
		{"class", "/", "", "/kubepods/burstable", "", ""},
		{"no UID", "/", "", "/kubepods/podman", "", ""},
		{"upper case", "/", "", "/kubepods/pod" + strings.ToUpper(podUID), "", ""},
		{"slice of a wrong class", "/", "", "/kubepods.slice/kubepods-burstable.slice/kubepods-besteffort-pod" + underUID + ".slice", "", ""},
		{"dashes in a slice's UID", "/", "", "/kubepods.slice/kubepods-pod" + podUID + ".slice", "", ""},
		{"parent steps", "/", "", "/kubepods/../kubepods/pod" + podUID, "", ""},
		{"outside of our namespace", "/", "", "/../kubepods/pod" + podUID, "", ""},
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

// A unit is the pod's own slice, or the scope of a container right below it. A container chooses the names below its own.
func TestUnitOfCgroup(t *testing.T) {
	slice := "kubepods-burstable-pod" + underUID + ".slice"
	pod := "/kubepods.slice/kubepods-burstable.slice/" + slice
	scope := "cri-containerd-" + container + ".scope"
	for path, want := range map[string]string{
		pod:                                   slice,
		pod + "/" + scope:                     scope,
		pod + "/crio-" + container + ".scope": "crio-" + container + ".scope",
		pod + "/crio-conmon-" + container + ".scope":     "crio-conmon-" + container + ".scope",
		pod + "/" + scope + "/system.slice":              "",
		pod + "/" + scope + "/" + scope:                  "",
		pod + "/" + scope + "/" + slice:                  "",
		pod + "/system.slice":                            "",
		pod + "/kubepods.slice":                          "",
		pod + "/docker-" + container + ".scope":          "",
		pod + "/" + container:                            "",
		pod + "/" + scope + " (deleted)":                 "",
		pod + " (deleted)":                               "",
		"/kubepods/burstable/pod" + podUID:               "",
		"/kubepods/burstable/pod" + podUID + "/" + scope: "",
	} {
		place, ok := host.Paths{}.PlaceOfCgroup(path)
		if !ok || place.UID != podUID || place.Unit != want {
			t.Errorf("%s: %+v %v, want unit %q", path, place, ok, want)
		}
		if driver := map[bool]string{true: "systemd", false: "cgroupfs"}[strings.Contains(path, ".slice/")]; place.Driver != driver {
			t.Errorf("%s: driver %s", path, place.Driver)
		}
	}
}

func TestPodOfPath(t *testing.T) {
	paths := host.Paths{KubeletRoot: "/var/lib/kubelet"}
	for path, want := range map[string]string{
		"/var/lib/kubelet/pods/" + podUID:                                 podUID,
		"/var/lib/kubelet/pods/" + podUID + "/volumes/x~y/z":              podUID,
		"/var/lib/kubelet/pods/" + podUID + "/volumes//deleted":           podUID,
		"/var/lib/kubelet/pods/" + podUID + "x/volumes":                   "",
		"/var/lib/kubelet/pods":                                           "",
		"/var/lib/kubelet/podsx/" + podUID:                                "",
		"/var/lib/kubelet/pods/../plugins/" + podUID:                      "",
		"/var/lib/kubelet":                                                "",
		"/mnt/var/lib/kubelet/pods/" + podUID:                             "",
		"/var/lib/kubelet/plugins/kubernetes.io/csi/pods/" + podUID + "/": "",
	} {
		uid, ok := paths.PodOfPath(path)
		if ok != (want != "") || ok && uid != want {
			t.Errorf("%s: got %q %v, want %q", path, uid, ok, want)
		}
	}
}

func TestNodePodUID(t *testing.T) {
	mirror := corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: podUID, Annotations: map[string]string{"kubernetes.io/config.mirror": staticUID}}}
	if got := host.NodePodUID(&mirror); got != staticUID {
		t.Errorf("mirror pod: %s", got)
	}
	if got := host.NodePodUID(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: podUID}}); got != podUID {
		t.Errorf("pod: %s", got)
	}
}

func FuzzPodOfCgroup(f *testing.F) {
	f.Add("/", "/kubepods/burstable/pod"+podUID+"/"+container)
	f.Add("/lab", "/lab.slice/lab-kubepods.slice/lab-kubepods-pod"+underUID+".slice/cri-containerd-"+container+".scope")
	f.Add("/a/b", "/a/b/kubepods/pod"+staticUID+" (deleted)")
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
	f.Add("/var/lib/kubelet", "/var/lib/kubelet/pods/"+podUID+"/volumes/a/b")
	f.Fuzz(func(t *testing.T, root, path string) {
		uid, ok := host.Paths{KubeletRoot: root}.PodOfPath(path)
		if ok && (!host.IsPodUID(uid) || !strings.Contains(path, uid)) {
			t.Errorf("%q: %q", path, uid)
		}
	})
}
