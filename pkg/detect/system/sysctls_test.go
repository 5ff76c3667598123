package system

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestSysctlFile(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":                 "/proc/sys/net/ipv4/ip_forward",
		"net/ipv4/conf/eth0.100/forwarding":   "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"net.ipv4.conf.eth0/100.forwarding":   "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"..etc.passwd":                        "",
		"net/../../etc/passwd":                "",
		"net.//.//.etc.passwd":                "",
		"kernel":                              "",
		"":                                    "",
		"kernel.x y":                          "",
		"net.ipv4.":                           "",
		"fs.binfmt_misc.qemu-x86_64":          "/proc/sys/fs/binfmt_misc/qemu-x86_64",
		"net.ipv4.conf.all.forwarding\x00tcp": "",
	} {
		if got := checkkit.SysctlFile(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

// The settings of the configuration take precedence over the built-in ones.
func TestSysctlsWanted(t *testing.T) {
	for name, test := range map[string]struct {
		settings SysctlsSettings
		want     []string // messages begin so
		err      string
	}{
		"as wanted": {SysctlsSettings{Want: map[string]string{"net.ipv4.tcp_rmem": "4096 131072 6291456"}}, nil, ""},
		"drifted": {SysctlsSettings{Want: map[string]string{"net.ipv4.tcp_rmem": "4096 131072 99"}},
			[]string{"net.ipv4.tcp_rmem is 4096 131072 6291456, wanted is 4096 131072 99"}, ""},
		"missing": {SysctlsSettings{Want: map[string]string{"net.netfilter.nf_conntrack_max": "1"}},
			[]string{"net.netfilter.nf_conntrack_max does not exist"}, ""},
		"built in": {SysctlsSettings{Kubernetes: true}, []string{"net.ipv4.ip_forward is 0"}, ""},
		"overridden": {SysctlsSettings{Kubernetes: true, Want: map[string]string{"net.ipv4.ip_forward": "0"}}, nil,
			""},
		"not a name":   {SysctlsSettings{Want: map[string]string{"../etc": "1"}}, nil, "not the name"},
		"nothing here": {SysctlsSettings{}, nil, "not applicable"},
	} {
		t.Run(name, func(t *testing.T) {
			m := checktest.NewLoadMachine(t)
			m.Write("proc/sys/net/ipv4/tcp_rmem", "4096\t131072\t6291456\n")
			m.Write("proc/sys/net/ipv4/ip_forward", "0\n")
			m.Write("etc/cni/net.d/10-bridge.conflist", "{}")
			findings, err := Sysctls(test.settings).Run(t.Context(), m.Host)
			var got []string
			for i, f := range findings {
				got = append(got, f.Message)
				if i < len(test.want) && strings.HasPrefix(f.Message, test.want[i]) {
					got[i] = test.want[i]
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

// The last file counts, by its name and not by its folder.
func TestSysctlWriter(t *testing.T) {
	m := checktest.NewLoadMachine(t)
	m.Write("usr/lib/sysctl.d/50-default.conf", "net.ipv4.ip_forward=1\n")
	m.Write("etc/sysctl.d/10-first.conf", "net/ipv4/ip_forward = 1\n")
	m.Write("usr/lib/sysctl.d/99-hardening.conf", "# net.ipv4.ip_forward=1\n-net.ipv4.ip_forward = 0\n")
	files := host.Files{Root: m.Host.Files.Root}
	for value, want := range map[string]string{"0": "/usr/lib/sysctl.d/99-hardening.conf", "1": ""} {
		if got := checkkit.SysctlWriter(files, "net.ipv4.ip_forward", value); got != want {
			t.Errorf("%s was set by %q, want %q", value, got, want)
		}
	}
	m.Write("etc/sysctl.d/99-hardening.conf", "net.ipv4.ip_forward = 1\n") // replaces the file of the same name
	if got := checkkit.SysctlWriter(files, "net.ipv4.ip_forward", "0"); got != "" {
		t.Errorf("set by %q", got)
	}
}

func FuzzSysctlFile(f *testing.F) {
	f.Add("net.ipv4.conf.eth0/100.forwarding")
	f.Fuzz(func(t *testing.T, name string) {
		if file := checkkit.SysctlFile(name); file != "" && (!strings.HasPrefix(file, "/proc/sys/") ||
			strings.Contains(file, "/../")) {
			t.Fatalf("%q is %q", name, file)
		}
	})
}
