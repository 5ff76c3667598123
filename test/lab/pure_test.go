package lab

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/hosttest/executable"
	"github.com/nodeagent/nodeagent/test/need"
)

const sampleMountinfo = `22 27 0:21 / /proc rw,relatime - proc proc rw
42 27 254:0 /var/lib/lab /var/lib/lab rw,relatime shared:1 - ext4 /dev/vda rw,discard
43 42 0:39 / /var/lib/lab/with\040blank rw shared:2 master:1 - tmpfs  rw,size=1k
44 42 0:4 net:[4026532178] /var/lib/lab/netns/cni-1 rw - nsfs nsfs rw
45 27 0:40 / /var/lib/laboratory rw - tmpfs x\134y rw
`

func TestParseMountinfo(t *testing.T) {
	got, err := parseMountinfo(sampleMountinfo)
	if err != nil {
		t.Fatal(err)
	}
	want := []mount{
		{ID: 22, Parent: 27, Minor: 21, Root: "/", Point: "/proc", Type: "proc", Source: "proc"},
		{ID: 42, Parent: 27, Major: 254, Root: "/var/lib/lab", Point: "/var/lib/lab", Shared: true, Type: "ext4",
			Source: "/dev/vda"},
		{ID: 43, Parent: 42, Minor: 39, Root: "/", Point: "/var/lib/lab/with blank", Shared: true, Type: "tmpfs",
			Source: "rw,size=1k"},
		{ID: 44, Parent: 42, Minor: 4, Root: "net:[4026532178]", Point: "/var/lib/lab/netns/cni-1", Type: "nsfs",
			Source: "nsfs"},
		{ID: 45, Parent: 27, Minor: 40, Root: "/", Point: "/var/lib/laboratory", Type: "tmpfs", Source: `x\y`},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	var points []string
	for _, m := range mountsWithin(got, "/var/lib/lab") {
		points = append(points, m.Point)
	}
	if diff := cmp.Diff([]string{"/var/lib/lab/netns/cni-1", "/var/lib/lab/with blank", "/var/lib/lab"},
		points); diff != "" {
		t.Errorf("within: %s", diff)
	}
	if m, ok := mountOf(got, "/var/lib/lab/with blank/x"); !ok || m.ID != 43 {
		t.Errorf("mountOf: %+v %v", m, ok)
	}
}

func TestParseMountinfoRejects(t *testing.T) {
	for name, line := range map[string]string{
		"no separator": "22 27 0:21 / /proc rw,relatime proc proc rw",
		"too short":    "22 27 0:21 / - proc proc rw",
		"bad ID":       "x 27 0:21 / /proc rw - proc proc rw",
		"bad device":   "22 27 021 / /proc rw - proc proc rw",
	} {
		if got, err := parseMountinfo(line); err == nil {
			t.Errorf("%s: got %+v, want an error", name, got)
		}
	}
}

func FuzzParseMountinfo(f *testing.F) {
	f.Add(sampleMountinfo)
	f.Fuzz(func(t *testing.T, text string) {
		if mounts, err := parseMountinfo(text); err != nil && mounts != nil {
			t.Errorf("both %v and an error", mounts)
		}
	})
}

func TestParseStat(t *testing.T) {
	got, err := parseStat("77 (a) b (c) S 5 6 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 10")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stat{State: 'S', Parent: 5, Session: 77, Threads: 1, Start: 123456}, got); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{"", "77", "77 (x) S 1 2",
		"77 (x) S a 6 b 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 c 9"} {
		if got, err := parseStat(line); err == nil {
			t.Errorf("%q: got %+v, want an error", line, got)
		}
	}
}

func TestDead(t *testing.T) {
	for s, want := range map[stat]bool{{State: 'S', Threads: 1}: false, {State: 'Z', Threads: 2}: false,
		{State: 'Z', Threads: 1}: true, {State: 'X'}: true} {
		if s.dead() != want {
			t.Errorf("%c with %d threads: dead %v", s.State, s.Threads, s.dead())
		}
	}
}

func FuzzParseStat(f *testing.F) {
	f.Add("77 (a) b (c) S 5 6 77 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 123456 9 10")
	f.Fuzz(func(t *testing.T, line string) {
		if s, err := parseStat(line); err != nil && s != (stat{}) {
			t.Errorf("both %+v and an error", s)
		}
	})
}

func TestCheckDir(t *testing.T) {
	for dir, good := range map[string]bool{
		DefaultDir: true, "/tmp/x": true,
		"": false, "lab": false, "/": false, "/var": false, "/var/lib/../lib/x": false, "/tmp/a b": false,
		"/tmp/" + strings.Repeat("x", 60): false,
	} {
		if err := checkDir(dir); (err == nil) != good {
			t.Errorf("%q: %v", dir, err)
		}
	}
}

// Labs with different folders have different cgroups, which all are named as a lab's.
func TestCgroupRoot(t *testing.T) {
	for dir, want := range map[string]string{DefaultDir: "/nodeagent-lab", DefaultDir + "-e2e": "/nodeagent-lab-e2e",
		"/srv/docker": "/nodeagent-lab-srv-docker"} {
		if got := cgroupRoot(dir); got != want {
			t.Errorf("%s: %s, want %s", dir, got, want)
		}
	}
}

// TestStartTellsWhy starts a component that ends at once: the error must name it and show its log.
func TestStartTellsWhy(t *testing.T) {
	dir := t.TempDir()
	l := open(dir, &state{}, nil)
	for _, sub := range []string{"log", "bin"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/ls", filepath.Join(dir, "bin/nodeproxy")); err != nil {
		t.Fatal(err)
	}
	err := l.Start(t.Context(), "node-proxy")
	if err == nil || !strings.Contains(err.Error(), "node-proxy is not ready") ||
		!strings.Contains(err.Error(), "cannot access") {
		t.Errorf("got %v", err)
	}
	if _, err := l.PID("no-such-thing"); err == nil {
		t.Error("an unknown component has a process")
	}
}

func TestWorksIn(t *testing.T) {
	for _, tc := range []struct {
		line string
		want bool
	}{
		{"/cache/kubelet --root-dir=/var/lib/lab/kubelet --v=2", true},
		{"/usr/bin/containerd --config /var/lib/lab/config/containerd.toml", true},
		{"/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id x -address /var/lib/lab/run/containerd.sock", true},
		{"/var/lib/lab/bin/nodeproxy x", true},
		{"/cache/kubelet --root-dir=/var/lib/laboratory/kubelet", false},
		{"/usr/bin/containerd", false},
		{"vim /var/lib/lab/lab.json", false},
		{"", false},
	} {
		if got := worksIn(strings.Fields(tc.line), "/var/lib/lab"); got != tc.want {
			t.Errorf("%q: got %v", tc.line, got)
		}
	}
}

func TestShimSockets(t *testing.T) {
	p := newPaths(t.TempDir(), &state{})
	for name, text := range map[string]string{
		"k8s.io/a/address":        "unix:///run/containerd/s/aa\n", // containerd 1.6
		"k8s.io/b/bootstrap.json": `{"version":3,"address":"unix:///run/containerd/s/bb","protocol":"ttrpc"}`,
		"k8s.io/c/bootstrap.json": `{"version":3,"address":"unix:///run/elsewhere/cc","protocol":"ttrpc"}`,
		"k8s.io/d/bootstrap.json": `{"version":3,"addr`,
		"k8s.io/e/config.json":    "{}",
	} {
		if err := writeFile(filepath.Join(p.ContainerdState, "io.containerd.runtime.v2.task", name), []byte(text),
			0o600); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff([]string{"/run/containerd/s/aa", "/run/containerd/s/bb"}, shimSockets(p)); diff != "" {
		t.Error(diff)
	}
}

// Each nested module pins the version of its programs.
func TestModules(t *testing.T) {
	repo, err := findRepo("")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range []module{kubernetes(), containerd2()} {
		if dir, err := m.cacheDir(repo); err != nil ||
			!strings.HasPrefix(dir, filepath.Join(repo, ".cache", m.name+"-v")) {
			t.Errorf("%s: %q, %v", m.name, dir, err)
		}
		m.source += "/not"
		if version, err := m.required(repo); err == nil {
			t.Errorf("%s: version %q of what it does not require", m.name, version)
		}
	}
}

func TestWhichContainerd(t *testing.T) {
	need.Root(t, "is to make a lab")
	for which, program := range map[string]string{"": "/usr/bin/ctr", "1": "/usr/bin/ctr",
		"2": ".cache/containerd-v2"} {
		l, err := newLab(Options{Dir: "/tmp/lab", Containerd: which})
		if err != nil || !strings.Contains(l.Paths.Ctr, program) {
			t.Errorf("containerd %q: %+v, %v", which, l, err)
		}
	}
	if l, err := newLab(Options{Dir: "/tmp/lab", Containerd: "3"}); err == nil {
		t.Errorf("a containerd that is not there: %s", l.Paths.Ctr)
	}
}

const natSave = `*nat
:PREROUTING ACCEPT [0:0]
:CNI-DN-aaa - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-DN-aaa -p tcp -m tcp --dport 18080 -j DNAT --to-destination 10.244.76.2:8080
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"nodeagent-lab\" id: \"1\"" -m multiport --dports 18080 -j CNI-DN-aaa
COMMIT
`

const otherRule = `-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"bridge\" id: \"2\"" -m multiport --dports 80 -j CNI-DN-bbb
`

func TestPortmapRemoval(t *testing.T) {
	pod := []string{
		`-D CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"nodeagent-lab\" id: \"1\"" -m multiport --dports 18080 -j CNI-DN-aaa`,
		"-F CNI-DN-aaa",
	}
	onlyPod := block(pod...) + block("-X CNI-DN-aaa")
	all := block(append(pod,
		"-F CNI-HOSTPORT-DNAT", "-F CNI-HOSTPORT-MASQ",
		"-D PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
		`-D POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ`)...) +
		block("-X CNI-DN-aaa", "-X CNI-HOSTPORT-DNAT", "-X CNI-HOSTPORT-MASQ")
	for _, tc := range []struct {
		name, save string
		keepTop    bool
		want       string
	}{
		{"nothing there", "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n", false, ""},
		{"all is ours", natSave, false, all},
		{"chains were there before", natSave, true, onlyPod},
		{"another network maps ports", strings.Replace(natSave, "COMMIT\n", otherRule+"COMMIT\n", 1), false, onlyPod},
		{"only another network", otherRule, false, ""},
	} {
		if diff := cmp.Diff(tc.want, portmapRemoval(tc.save, tc.keepTop)); diff != "" {
			t.Errorf("%s: %s", tc.name, diff)
		}
	}
}

func block(lines ...string) string { return "*nat\n" + strings.Join(lines, "\n") + "\nCOMMIT\n" }

func TestImageArchive(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := executable.Write(program, []byte("#!")); err != nil {
		t.Fatal(err)
	}
	img := image{
		ref: "localhost/x:1", files: map[string]string{"/usr/bin/program": program},
		links: map[string]string{"sbin/alias": "/usr/bin/program"}, entrypoint: []string{"/usr/bin/program"},
	}
	var one, two bytes.Buffer
	if err := img.write(&one); err != nil {
		t.Fatal(err)
	}
	if err := img.write(&two); err != nil || !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("the same image twice is not the same archive (%v)", err)
	}
	archive := untar(t, &one)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal([]byte(archive["manifest.json"]), &manifest); err != nil {
		t.Fatal(err)
	}
	if len(manifest) != 1 || !cmp.Equal(manifest[0].RepoTags, []string{"localhost/x:1"}) ||
		len(manifest[0].Layers) != 1 {
		t.Fatalf("manifest %+v", manifest)
	}
	layer := archive[manifest[0].Layers[0]]
	if config := archive[manifest[0].Config]; !strings.Contains(config, "sha256:"+digest([]byte(layer))) {
		t.Errorf("configuration %s does not name the layer", config)
	}
	want := map[string]string{
		"sbin/": "dir 755", "tmp/": "dir 1777", "usr/": "dir 755", "usr/bin/": "dir 755",
		"usr/bin/program": "#!", "sbin/alias": "-> /usr/bin/program",
	}
	if diff := cmp.Diff(want, untar(t, strings.NewReader(layer))); diff != "" {
		t.Error(diff)
	}
}

func untar(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := map[string]string{}
	archive := tar.NewReader(r)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		switch header.Typeflag {
		case tar.TypeDir:
			data = []byte("dir " + map[int64]string{0o755: "755", 0o1777: "1777"}[header.Mode])
		case tar.TypeSymlink:
			data = []byte("-> " + header.Linkname)
		}
		files[header.Name] = string(data)
	}
}
