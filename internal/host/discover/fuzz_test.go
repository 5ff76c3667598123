package discover

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
)

func TestParseTOMLStrings(t *testing.T) {
	tests := map[string]struct {
		text string
		want map[string][]string
		bad  bool
	}{
		"empty": {"", map[string][]string{}, false},
		"top level": {"root = \"/a\"\nstate='/b' # c\n", map[string][]string{"root": {"/a"}, "state": {"/b"}},
			false},
		"other types": {"a = 1\nb = true\nc = {d = \"/e\"}\n", map[string][]string{"c.d": {"/e"}}, false},
		"quoted table": {"[plugins.\"a.b\".cni]\nx = \"y\"", map[string][]string{"plugins.a.b.cni.x": {"y"}},
			false},
		"quoted key":       {"\"a=b\" = \"y\"", map[string][]string{"a=b": {"y"}}, false},
		"dotted key":       {"[a]\nb . c = \"d\"", map[string][]string{"a.b.c": {"d"}}, false},
		"comment in table": {"[a] # [b]\nc = \"#\"", map[string][]string{"a.c": {"#"}}, false},
		"array":            {"a = ['x', \"y\"]", map[string][]string{"a": {"x", "y"}}, false},
		"array of lines": {"a = [ # one\n 'x', # two ]\n\n\"y\" ]\nb = \"z\"", map[string][]string{"a": {"x", "y"},
			"b": {"z"}}, false},
		"array of numbers": {"a = [1, 2.5, true]\nb = \"z\"", map[string][]string{"b": {"z"}}, false},
		"array of tables":  {"[[x]]\na = \"1\"\n[y]\na = \"2\"", map[string][]string{"y.a": {"2"}}, false},
		"multi-line string": {"a = \"\"\"\nroot = \"/no\"\n\"\"\"\nb = \"z\"",
			map[string][]string{"a": {"root = \"/no\"\n"}, "b": {"z"}}, false},
		"escapes":           {`a = "x\"y"`, map[string][]string{"a": {`x"y`}}, false},
		"unfinished string": {"a = 'x\n", nil, true},
		"deep arrays":       {"a = " + strings.Repeat("[", 1<<18) + strings.Repeat("]", 1<<18), nil, true},
		"deep keys": {strings.Repeat("a.", 20) + "a = 'x'\nb.c = 'y'", map[string][]string{"b.c": {"y"}},
			false},
		"too large":           {"#" + strings.Repeat("x", 1<<20), nil, true},
		"unfinished in array": {"a = ['x', 'y\n]", nil, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := host.ParseTOMLStrings([]byte(test.text))
			if (err != nil) != test.bad {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseFlags(t *testing.T) {
	args := []string{"/usr/bin/kubelet", "--a=1", "--b", "2", "--c", "--d_e=3", "-f", "--a=4", "--", "--g=5"}
	want := map[string]string{"a": "4", "b": "2", "c": "", "d-e": "3"}
	if diff := cmp.Diff(want, parseFlags(args)); diff != "" {
		t.Error(diff)
	}
}

func TestIsKubelet(t *testing.T) {
	for line, want := range map[string]bool{
		"kubelet /usr/bin/kubelet --v=2":                    true,
		"kubelet kubelet":                                   true,
		"kubelet-1.36.3 /opt/kubelet-1.36.3 --v=2":          true,
		"hyperkube /hyperkube kubelet --v=2":                true,
		"hyperkube /hyperkube kube-proxy":                   false,
		"bash bash -c kubelet":                              false,
		"kubelet-exporte /bin/kubelet-exporter":             false,
		"ld-linux-x86-64 /lib/ld-linux-x86-64.so.2 kubelet": true,
	} {
		fields := strings.Fields(line)
		if got := isKubelet(fields[0], fields[1:]); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func FuzzParseTOMLStrings(f *testing.F) {
	f.Add([]byte("a = [ # one\n 'x', \"y\"]\n[b.\"c.d\"]\ne=\"\"\"\nx\n\"\"\"\n[[f]]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		values, err := host.ParseTOMLStrings(data)
		if (err == nil) != (values != nil) {
			t.Errorf("%v, %v", values, err)
		}
	})
}

func FuzzParseKubeletConfiguration(f *testing.F) {
	f.Add([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\nhealthzPort: " +
		"1\nstaticPodPath: x\n"))
	f.Add([]byte(`{"kind": "KubeletConfiguration", "healthzPort": null}`))
	f.Add([]byte("a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		config := KubeletConfiguration{PodLogsDir: "/before"}
		err := ParseKubeletConfiguration(&config, data, "/dir")
		if err != nil && !cmp.Equal(config, KubeletConfiguration{PodLogsDir: "/before"}) {
			t.Errorf("changed in spite of %v", err)
		}
		if err == nil && config.StaticPodPath != "" && !filepath.IsAbs(config.StaticPodPath) {
			t.Errorf("relative path %q", config.StaticPodPath)
		}
	})
}

// FuzzDiscover fuzzes kubelet's arguments, its configuration and containerd's.
func FuzzDiscover(f *testing.F) {
	f.Add("kubelet\x00--root-dir=/a\x00--config=/etc/k\x00",
		"kind: KubeletConfiguration\napiVersion: kubelet.config.k8s.io/v1beta1\n", "root = '/a'")
	f.Add("kubelet\x00--config\x00/etc/k\x00--address=::\x00--port=-1\x00", "", "")
	f.Fuzz(func(t *testing.T, args, config, toml string) {
		root := t.TempDir()
		for name, text := range map[string]string{
			"proc/9/stat":                "9 (kubelet) S 1 9 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4 0 0",
			"proc/9/cmdline":             args,
			"proc/9/status":              "Uid:\t0\t0\t0\t0\n",
			"proc/9/cgroup":              "0::/system.slice/kubelet.service\n",
			"usr/bin/kubelet":            "",
			"etc/k":                      config,
			"etc/containerd/config.toml": toml,
		} {
			path := filepath.Join(root, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for link, target := range map[string]string{
			"proc/9/exe": "/usr/bin/kubelet", "proc/9/ns/mnt": "mnt:[1]", "proc/1/ns/mnt": "mnt:[1]",
		} {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(root, link)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, filepath.Join(root, link)); err != nil {
				t.Fatal(err)
			}
		}
		d, err := Discover(host.Files{Root: root}, host.Paths{})
		if err != nil {
			t.Fatal(err)
		}
		p := d.Paths
		for _, path := range []string{p.KubeletRoot, p.PluginRegistry, p.CRISocket, p.ContainerdRoot, p.ContainerdState,
			p.CNIConfDir, p.PodLogs} {
			if !filepath.IsAbs(path) {
				t.Errorf("relative path %q in %+v", path, p)
			}
		}
	})
}
