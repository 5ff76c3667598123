package system

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/pkg/detect/checktest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// The default wants no module, so these cases are not fixtures.
func TestKernelModules(t *testing.T) {
	const loaded = "overlay 151552 12 - Live 0x0000000000000000\nbr_netfilter 32768 0 - Live 0x0\nip_vs 1 0 - " +
		"Unloading 0x0\n"
	for name, test := range map[string]struct {
		files   map[string]string
		wanted  string
		missing []string
		err     string
	}{
		"loaded": {map[string]string{"proc/modules": loaded}, "overlay br-netfilter", nil, ""},
		"built in": {map[string]string{"proc/modules": loaded,
			"sys/module/nf_conntrack/parameters/hashsize": "1"}, "nf_conntrack", nil, ""},
		"built in, silent": {map[string]string{"proc/sys/kernel/osrelease": "6.1",
			"lib/modules/6.1/modules.builtin": "kernel/x/ext4.ko\nkernel/net/nf-tables.ko\n"}, "nf_tables ext4", nil,
			""},
		"missing": {map[string]string{"proc/modules": loaded, "proc/sys/kernel/osrelease": "6.1",
			"lib/modules/6.1/modules.builtin": "kernel/x/ext4.ko\n"},
			"dm_thin_pool overlay ext4 xt4", []string{"dm_thin_pool", "xt4"}, ""},
		"being unloaded": {map[string]string{"proc/modules": loaded, "proc/sys/kernel/osrelease": "6.1"}, "ip_vs",
			[]string{"ip_vs"}, ""},
		"malformed":      {map[string]string{"proc/modules": "overlay\n"}, "overlay", nil, "/proc/modules"},
		"no release":     {map[string]string{"proc/modules": loaded}, "zfs", nil, "osrelease"},
		"nothing wanted": {nil, "", nil, "not applicable"},
	} {
		t.Run(name, func(t *testing.T) {
			m := checktest.NewLoadMachine(t)
			for file, content := range test.files {
				m.Write(file, content)
			}
			check := KernelModules(KernelModulesSettings{Modules: strings.Fields(test.wanted)})
			findings, err := check.Observe(t.Context(), m.Host)
			var missing []string
			for _, f := range findings {
				missing = append(missing, f.Subject.Name)
				if f.Reason != "KernelModuleMissing" || f.Problem() != nil {
					t.Errorf("%+v", f)
				}
			}
			if diff := cmp.Diff(test.missing, missing); diff != "" {
				t.Error(diff)
			}
			if (err != nil) != (test.err != "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

func TestKernelModulesRecorded(t *testing.T) {
	checktest.RunFixture(t, KernelModules(KernelModulesSettings{Modules: []string{"nf-conntrack", "overlay"}}), "ok",
		"testdata/kernel-modules/ok-built-in.txtar")
}

// The real kernel has no such module, neither loaded nor built in.
func TestRealKernelModules(t *testing.T) {
	h := &host.Host{Clock: host.Now}
	findings, err := missingModules(h, []string{"no_such_module"})
	if err != nil || len(findings) != 1 {
		t.Errorf("%+v, %v", findings, err)
	}
}
