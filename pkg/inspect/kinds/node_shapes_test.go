package kinds_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/inspecttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Nodes differ in kubelet's directory and pods' networks. On each, living pods are live, and leftovers are found.

// countsOf counts the objects of a pod by kind and verdict.
func countsOf(report object.Report, uid string, kinds ...object.Kind) map[string]int {
	counts := make(map[string]int)
	for _, o := range report.Objects {
		for _, kind := range kinds {
			if o.Kind == kind && o.Pod.UID == uid {
				counts[fmt.Sprintf("%s %s", o.Kind, o.Verdict)]++
			}
		}
	}
	return counts
}

// clusterNetwork gives an address of each family, as the network of a dual-stack cluster does.
const clusterNetwork = `{"cniVersion":"1.0.0","name":"cluster","plugins":[{"type":"bridge","bridge":"nacluster0",
"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.250.8.0/24"}],[{"subnet":"fd00:8::/64"}]]}}]}`

// storageNetwork is a second network, in the form in which NetworkAttachmentDefinitions mostly are: a single plugin.
const storageNetwork = `{"cniVersion":"1.0.0","name":"storage","type":"ptp",
"ipam":{"type":"host-local","dataDir":%q,"ranges":[[{"subnet":"10.250.9.0/24"}]]}}`

// Multus gives a pod several networks: the cache has an attachment for each, of one sandbox and in one namespace. With
// addresses of both families, all of it is the dead pod's, or the living one's.
func TestTwoNetworksAndBothFamilies(t *testing.T) {
	hosttest.PrivateNetwork(t)
	n := newNode(t)
	for uid, id := range map[string]string{dead: deadSandbox, living: sandbox} {
		netns := filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+uid)
		hosttest.PinNetns(t, netns)
		n.AttachTo(netns, uid, id, "eth0", fmt.Sprintf(clusterNetwork, n.Host.Paths.CNINetworksDir))
		n.AttachTo(netns, uid, id, "net1", fmt.Sprintf(storageNetwork, n.Host.Paths.CNINetworksDir))
	}
	report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
	for uid, verdict := range map[string]object.Verdict{dead: object.Leftover, living: object.Live} {
		want := map[string]int{"cni-attachment " + string(verdict): 2, "netns " + string(verdict): 1,
			"link " + string(verdict): 2, "ipam-lease " + string(verdict): 3}
		got := countsOf(report, uid, object.CNIAttachment, object.Netns, object.Link, object.IPAMLease)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s:\n%s\n%s", verdict, diff, inspecttest.Whys(report, uid))
		}
	}
}

// CRI-O names the mounts of network namespaces by UUIDs alone; on a containerd node such names are another program's.
func TestNetnsOfCRIO(t *testing.T) {
	for name, want := range map[string]map[object.Kind]object.Verdict{
		"crio.sock":       {object.Netns: object.Leftover, object.Link: object.Leftover},
		"containerd.sock": {},
	} {
		t.Run(name, func(t *testing.T) {
			hosttest.PrivateNetwork(t)
			n := newNode(t)
			n.Host.Paths.CRISocket = filepath.Join(t.TempDir(), name)
			dir := n.Host.Paths.NetnsDirs[0]
			netns := filepath.Join(dir, "8e8c99d8-5300-4cb1-8496-b2f975d2dc58")
			hosttest.PinNetns(t, netns)
			hosttest.PinNetns(t, filepath.Join(dir, "foo")) // ip netns add foo
			n.AttachTo(netns, dead, deadSandbox, "eth0", fmt.Sprintf(clusterNetwork, n.Host.Paths.CNINetworksDir))
			report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
			got := make(map[object.Kind]object.Verdict)
			for _, o := range report.Objects {
				if (o.Kind == object.Netns || o.Kind == object.Link) && o.Verdict != object.Foreign {
					got[o.Kind] = o.Verdict
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff, inspecttest.Whys(report, dead))
			}
		})
	}
}

// Kubelet's directory is on its own filesystem, behind a link, or a bind of a directory on a data disk, so that its
// mounts may appear under either name. Each mount and directory of a pod is found once, with the right owner.
func TestKubeletDirectoryElsewhere(t *testing.T) {
	for name, place := range map[string]func(n *node, root, data string){
		"a filesystem of its own": func(n *node, root, _ string) { n.Mount("tmpfs", root, "tmpfs", 0) },
		"behind a link": func(n *node, root, data string) {
			if err := errors.Join(os.RemoveAll(root), os.Symlink(data, root)); err != nil {
				n.t.Fatal(err)
			}
		},
		"a parent behind a link": func(n *node, root, data string) {
			link := filepath.Join(filepath.Dir(data), "var")
			if err := errors.Join(os.Rename(root, filepath.Join(data, "kubelet")), os.Symlink(data, link)); err != nil {
				n.t.Fatal(err)
			}
			n.Host.Paths.KubeletRoot = filepath.Join(link, "kubelet")
		},
		"a bind": func(n *node, root, data string) { n.Mount(data, root, "", unix.MS_BIND) },
		"a bind on a shared mount": func(n *node, root, data string) {
			n.Mount("tmpfs", data, "tmpfs", 0)
			if err := unix.Mount("", data, "", unix.MS_SHARED, ""); err != nil {
				n.t.Fatal(err)
			}
			n.Mount(data, root, "", unix.MS_BIND)
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			place(n, n.Host.Paths.KubeletRoot, n.Mkdir(t.TempDir(), "data"))
			for _, uid := range []string{dead, living} {
				n.Mount("tmpfs", n.PodDir(uid, "volumes/kubernetes.io~empty-dir/v"), "tmpfs", 0)
			}
			report, _ := passes(t, n, n.inspector(), nil, 4, 4*time.Minute)
			for uid, verdict := range map[string]object.Verdict{dead: object.Leftover, living: object.Live} {
				want := map[string]int{"mount " + string(verdict): 1, "pod-directory " + string(verdict): 1}
				if diff := cmp.Diff(want, countsOf(report, uid, object.Mount, object.PodDirectory)); diff != "" {
					t.Errorf("%s:\n%s\n%s", verdict, diff, inspecttest.Whys(report, uid))
				}
			}
			for _, o := range report.Objects {
				if o.Pod.UID == dead && o.Facts["refused"] != "" {
					t.Errorf("%s cannot be released: %s", o.ID, o.Facts["refused"])
				}
			}
		})
	}
}
