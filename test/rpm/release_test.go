package rpm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/test/need"
)

const (
	living = "11111111-1111-4111-8111-111111111111"
	dead   = "22222222-2222-4222-8222-222222222222"
)

// TestReleaseOnSystemdHost: the packaged service releases the leftovers of a dead pod on a host with systemd as init
// and with a shared root mount: processes that ignore SIGTERM, mounts, cgroups that are systemd's units, and the pod's
// directory. It changes no other object: systemd ran in the pod and left cgroups below it with the names of the host's
// slices, and below the source of its subPath the host later mounted a disk, which propagated into the pod's directory.
func TestReleaseOnSystemdHost(t *testing.T) {
	t.Parallel()
	m := boot(t)
	if out := m.run("findmnt", "-no", "PROPAGATION", "/"); strings.TrimSpace(out) != "shared" {
		t.Fatalf("the root mount of the machine is %s", out)
	}
	m.startNode()
	m.witnesses(living, dead)
	for _, uid := range []string{living, dead} {
		m.startPod(uid)
	}
	m.run("sh", "-ec", "mount -t tmpfs disk /data/disk; echo data of the host >/data/disk/canary")
	// A service with its own mount namespace, which has copies of all these mounts.
	m.run("systemd-run", "--unit=apart", "-p", "PrivateTmp=yes", "sleep", "infinity")
	m.install()
	m.mode("dry-run")

	left := m.leftBy(dead)
	if len(left) != 6 {
		t.Fatalf("of the pod there is %q", left)
	}
	t.Log(strings.Join(left, "\n"))
	before := m.bystanders()
	m.awaitReady()
	m.pass(10 * time.Second)
	if out := m.try("nodeagent", "inspect"); strings.Contains(out.stdout, "LEFTOVER") {
		t.Errorf("while all know the pod: %s", out)
	}

	m.witnesses(living)
	m.eventually("a plan for all four kinds", func() error {
		s, err := m.askStatus()
		for _, kind := range []string{"process", "mount", "cgroup", "pod-directory"} {
			if !slices.ContainsFunc(s.Release.Last, func(line string) bool { return strings.Contains(line, kind) }) {
				err = errors.Join(err, fmt.Errorf("none for %s", kind))
			}
		}
		if err != nil {
			err = fmt.Errorf("%w: %q; %s", err, s.Release.Last, m.try("nodeagent", "inspect"))
		}
		return err
	})
	m.pass(5 * time.Second)
	if diff := cmp.Diff(left, m.leftBy(dead)); diff != "" {
		t.Errorf("dry-run has done something: %s", diff)
	}
	m.compare(before)

	m.mode("on")
	m.eventually("the release", func() error {
		if left := m.leftBy(dead); len(left) > 0 {
			return fmt.Errorf("left: %q; %s", left, m.released())
		}
		return nil
	})
	m.compare(before)
	m.eventually("the agent to say so", func() error {
		if text := m.released(); !strings.Contains(text, "pod="+dead+" result=released") {
			return errors.New(text)
		}
		return nil
	})
	m.pass(5 * time.Second)
	for _, line := range m.status().Release.Last {
		t.Log(line)
	}
	m.compare(before)
}

// pass lets the agent make passes.
func (m *machine) pass(d time.Duration) { <-time.After(d) }

// released returns the agent's records about releases.
func (m *machine) released() string {
	return m.try("journalctl", "--no-pager", "-u", "nodeagent", "-o", "cat", "--grep", "msg=.?release").stdout
}

// mode sets the mode of releases, with seconds instead of the minutes of a node.
func (m *machine) mode(mode string) {
	m.t.Helper()
	m.write(configFile, "inspect: {every: 2s, passes: 3, grace: 4s, listSpacing: 2s, kubeletUptime: 2s, "+
		"runtimeUptime: 2s}\nremediate: {mode: "+mode+", ownerGrace: 1s, processGrace: 1s}\n")
	m.run("systemctl", "reload", "nodeagent")
}

// startNode starts a real containerd with its CRI plugin, and the stand-ins for kubelet and the apiserver, as services.
func (m *machine) startNode() {
	m.t.Helper()
	runtime := need.Program(m.t, "containerd")
	kubelet := filepath.Join(m.t.TempDir(), "kubelet")
	build := exec.Command("go", "build", "-o", kubelet, "./node")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		m.t.Fatalf("%v: %s", err, out)
	}
	copyFile(m.t, runtime, filepath.Join(m.root, "usr/bin/containerd"))
	copyFile(m.t, kubelet, filepath.Join(m.root, "usr/bin/kubelet"))
	m.run("chmod", "0755", "/usr/bin/containerd", "/usr/bin/kubelet")
	m.write("/etc/containerd/config.toml", "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  "+
		// the root is an overlay already
		"restrict_oom_score_adj = true\n[plugins.\"io.containerd.grpc.v1.cri\".containerd]\n  snapshotter = "+
		"\"native\"\n")
	m.write("/etc/cni/net.d/10-net.conflist", `{"cniVersion": "0.4.0", "name": "net", "plugins": [{"type": "bridge"}]}`)
	m.write("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n"+
		"staticPodPath: /etc/kubernetes/manifests\ncgroupDriver: systemd\ncontainerRuntimeEndpoint: "+
		"unix:///run/containerd/containerd.sock\n")
	m.run("mkdir", "-p", "/etc/kubernetes/manifests")
	m.write("/etc/kubernetes/kubelet.conf", `{"kind": "Config", "apiVersion": "v1", "current-context": "x",
"clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:6443", "certificate-authority": "/var/lib/kubelet/pki/kubelet.crt"}}],
"users": [{"name": "u", "user": {"token": "of-this-node"}}], "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}]}`)
	m.write("/etc/systemd/system/containerd.service", "[Service]\nExecStart=/usr/bin/containerd\nDelegate=yes\n")
	m.write("/etc/systemd/system/kubelet.service", "[Service]\n"+
		"ExecStart=/usr/bin/kubelet --kubeconfig=/etc/kubernetes/kubelet.conf --config=/var/lib/kubelet/config.yaml "+
		"--hostname-override=node\n")
	m.run("systemctl", "daemon-reload")
	m.run("systemctl", "start", "containerd", "kubelet")
}

// witnesses sets the pods of kubelet and the apiserver.
func (m *machine) witnesses(uids ...string) {
	m.t.Helper()
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "1"},
	}
	for _, uid := range uids {
		list.Items = append(list.Items, corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: "pod-" + uid[:4], UID: types.UID(uid),
				Annotations: map[string]string{"kubernetes.io/config.source": "api"},
			},
			Spec: corev1.PodSpec{NodeName: "node"}, Status: corev1.PodStatus{Phase: corev1.PodRunning},
		})
	}
	id := func(file string) string { return strings.TrimSpace(m.run("cat", file)) }
	node := corev1.Node{
		TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "node",
			UID: "of-node"},
		Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{
			MachineID: id("/etc/machine-id"), BootID: id("/proc/sys/kernel/random/boot_id"), KubeletVersion: "v1.36.3",
		}},
	}
	for file, object := range map[string]any{"kubelet.json": list, "pods.json": list, "node.json": node} {
		text, err := json.Marshal(object)
		if err != nil {
			m.t.Fatal(err)
		}
		m.write("/root/node/.next", string(text))
		m.run("mv", "/root/node/.next", "/root/node/"+file)
	}
}

func slice(uid string) string {
	return "kubepods-besteffort-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
}

func scope(uid string) string { return "cri-containerd-" + strings.Repeat(uid[:4], 16) + ".scope" }

// startPod creates the objects that kubelet with the systemd driver, containerd, and systemd in the pod create for a
// pod.
func (m *machine) startPod(uid string) {
	m.t.Helper()
	dir := "/var/lib/kubelet/pods/" + uid
	m.run("sh", "-ec", `mkdir -p /data/disk "$1/volumes/kubernetes.io~empty-dir/scratch" "$1/volume-subpaths/data/app/0" \
  "$1/plugins/kubernetes.io~empty-dir/scratch" "$1/containers/app"
touch "$1/etc-hosts" "$1/plugins/kubernetes.io~empty-dir/scratch/ready" "$1/containers/app/0123abcd"
mount -t tmpfs tmpfs "$1/volumes/kubernetes.io~empty-dir/scratch"
mount --bind /data "$1/volume-subpaths/data/app/0"`, "sh", dir)
	m.write("/data/canary", "data of the host")
	m.t.Cleanup(func() { m.try("systemctl", "kill", "--signal=KILL", scope(uid)) }) // the machine must halt at once
	m.run("sh", "-ec", `systemd-run --quiet --scope --slice="$1" --unit="$2" -p Delegate=yes \
  sh -c 'trap "" TERM; sleep infinity & exec sleep infinity' </dev/null >/dev/null 2>&1 &`, "sh", slice(uid), scope(uid))
	at := "/kubepods.slice/kubepods-besteffort.slice/" + slice(uid) + "/" + scope(uid)
	m.eventually("the pod's processes", func() error {
		if out := m.try("cat", "/sys/fs/cgroup/systemd"+at+"/cgroup.procs"); strings.Count(out.stdout, "\n") != 2 {
			return errors.New(out.String())
		}
		return nil
	})
	// One of its processes moves into a cgroup with the name of a slice of the host. Another container had such
	// cgroups, too; systemd no longer knows its scope, and so does not remove them.
	m.run("sh", "-ec", `pid=$(tail -n 1 "/sys/fs/cgroup/systemd$1/cgroup.procs")
for h in systemd unified; do
  mkdir "/sys/fs/cgroup/$h$1/system.slice" "/sys/fs/cgroup/$h$1/kubepods.slice" "/sys/fs/cgroup/$h$1/user.slice"
  echo $pid >"/sys/fs/cgroup/$h$1/system.slice/cgroup.procs"
  mkdir "/sys/fs/cgroup/$h$2" "/sys/fs/cgroup/$h$2/system.slice" "/sys/fs/cgroup/$h$2/kubepods.slice" "/sys/fs/cgroup/$h$2/user.slice"
done`, "sh", at, filepath.Dir(at)+"/cri-containerd-"+strings.Repeat("f"+uid[:3], 16)+".scope")
}

// leftBy lists the objects of a pod known to the kernel and systemd.
func (m *machine) leftBy(uid string) []string {
	m.t.Helper()
	out := m.run("sh", "-c", `[ -e "/var/lib/kubelet/pods/$1" ] && echo "directory"
echo "processes" $(grep -l -- "$2" /proc/[0-9]*/cgroup 2>/dev/null)
echo "mounts" $(grep -hoE -- "[^ ]*/$1/[^ ]*" /proc/[0-9]*/mountinfo 2>/dev/null | sort -u)
echo "cgroups" $(find /sys/fs/cgroup -path "*/$2*" -type d)
for unit in "$2" "$3"; do echo "unit $unit" $(systemctl is-active "$unit" | grep -v inactive); done`, "sh", uid, slice(uid), scope(uid))
	var left []string
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 1 && words[0] != "unit" || len(words) > 2 ||
			words[0] == "directory" {
			left = append(left, strings.Join(words, " "))
		}
	}
	return left
}

// bystanders is everything that must not change: units, with the invocation and the process of each, the processes of
// the living pod with their start times, its files and cgroups by inode, every mount outside the dead pod's directory,
// and the host's data.
func (m *machine) bystanders() []string {
	m.t.Helper()
	out := m.run("sh", "-ec", `systemctl show -p Id -p InvocationID -p MainPID --state=active "*" | awk 'BEGIN { RS = "" } { $1 = $1; print "unit", $0 }'
for pid in $(cat $(find /sys/fs/cgroup/systemd/kubepods.slice -path "*/$2*" -name cgroup.procs)); do
  echo "process $pid $(cut -d " " -f 22 /proc/$pid/stat) $(tr "\n" " " </proc/$pid/cgroup)"
done
find "/var/lib/kubelet/pods/$1" -printf "file %p %i %m %T@\n"
find /sys/fs/cgroup -path "*/$2*" -type d -printf "cgroup %p %i\n" || : # a service may have ended meanwhile
for unit in apart kubelet; do
  sed "s/^/mount of $unit: /" "/proc/$(systemctl show --value -p MainPID "$unit")/mountinfo"
done
for file in /data/canary /data/disk/canary "/var/lib/kubelet/pods/$1/volume-subpaths/data/app/0/disk/canary"; do echo "$file $(cat $file)"; done`,
		"sh", living, slice(living))
	var lines []string
	for line := range strings.Lines(out) {
		// systemd writes "-" as \x2d in the names of mount units, kubelet as "_" in those of slices.
		plain := strings.NewReplacer(`\x2d`, "-", "_", "-").Replace(line)
		if line = strings.TrimSpace(line); line != "" && !strings.Contains(plain, dead) &&
			!strings.Contains(line, scope(dead)) {
			lines = append(lines, line)
		}
	}
	slices.Sort(lines)
	return lines
}

func (m *machine) compare(before []string) {
	m.t.Helper()
	after := slices.DeleteFunc(m.bystanders(), func(line string) bool { // a timer's job may have started
		return strings.HasPrefix(line, "unit ") && !slices.Contains(before, line)
	})
	if diff := cmp.Diff(before, after); diff != "" {
		m.t.Errorf("bystanders are not what they were (-before +after): %s", diff)
	}
}
