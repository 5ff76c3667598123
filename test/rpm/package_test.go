package rpm_test

import (
	"debug/elf"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/test/need"
)

func TestInstall(t *testing.T) {
	m := boot(t)
	m.install()

	var started, ready int64 // microseconds of the machine's monotonic clock
	scan(t, m.property("ExecMainStartTimestampMonotonic"), &started)
	scan(t, m.property("ActiveEnterTimestampMonotonic"), &ready)
	if took := time.Duration(ready-started) * time.Microsecond; took <= 0 {
		t.Errorf("ready %s after the start", took)
	} else {
		t.Logf("ready %s after the start", took)
	}
	if got := m.property("UnitFileState"); got != "enabled" {
		t.Errorf("the service is %s, want enabled by preset", got)
	}
	if s := m.status(); s.Version != older+"-1" || !s.Readiness.Ready {
		t.Errorf("status: %+v", s)
	}
	if !m.exists("/usr/share/man/man1/nodeagent-check.1.gz") {
		t.Error("the manual is missing")
	}
	if got := m.run("rpm", "-q", "--licensefiles", "nodeagent"); !strings.Contains(got, "/LICENSE\n") ||
		!strings.Contains(got, "/THIRD-PARTY-NOTICES\n") {
		t.Errorf("licences: %s", got)
	}
	if out := m.run("bash", "-c", ". /usr/share/bash-completion/bash_completion; . "+
		"/usr/share/bash-completion/completions/nodeagent; complete -p nodeagent"); !strings.Contains(out,
		"__start_nodeagent") {
		t.Errorf("completion of bash: %s", out)
	}
	m.run("rpm", "-V", "--nodeps", "nodeagent")
	if got := m.run("stat", "-c", "%a %U %G", "/etc/nodeagent/config.yaml", "/var/lib/nodeagent",
		"/run/nodeagent/nodeagent.sock"); got != "640 root nodeagent\n700 root root\n600 root root\n" {
		t.Errorf("modes and owners:\n%s", got)
	}
	checkInMachine(t, m)
}

// checkInMachine runs the command in a container without Kubernetes. It may only warn about the machine of the
// container: its load and its disk.
func checkInMachine(t *testing.T, m *machine) {
	t.Helper()
	answer := m.try("nodeagent", "check")
	out := answer.stdout
	ofTheHost := 0
	for _, reason := range []string{"HighLoad", "CPUPressure", "DiskSpaceLow"} {
		ofTheHost += strings.Count(out, "  WARNING "+reason+":")
	}
	if answer.code != 0 && (answer.code != 1 || strings.Contains(out, "  FATAL ") ||
		strings.Count(out, "  WARNING ") != ofTheHost) {
		t.Errorf("nodeagent check: %s", answer)
	}
	for _, want := range []string{"  ok      ", "load", "filesystem-readonly", "  absent  kubelet-health"} {
		if !strings.Contains(out, want) {
			t.Errorf("nodeagent check does not print %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "UNKNOWN") {
		t.Errorf("nodeagent check has unknown results:\n%s", out)
	}
}

func TestInstallTwice(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write("/etc/nodeagent/config.yaml", "nodeName: \"\"\n")
	m.run("nodeagent", "reload")
	for range 2 {
		m.run("rpm", "-U", "--nodeps", "--replacepkgs", inMachine(older))
		m.awaitReady()
	}
	if got := m.run("rpm", "-q", "nodeagent"); got != "nodeagent-"+older+"-1.x86_64\n" {
		t.Errorf("installed: %s", got)
	}
	if got := m.read("/etc/nodeagent/config.yaml"); got != "nodeName: \"\"\n" {
		t.Errorf("the configuration became %q", got)
	}
}

func TestUpgradeAndDowngrade(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	const mine = "checks:\n  load:\n    enabled: false\n"
	m.write("/etc/nodeagent/config.yaml", mine)
	m.run("systemctl", "reload", "nodeagent")

	m.run("rpm", "-U", "--nodeps", inMachine(newer))
	m.awaitReady() // it compares the running version with its own
	s := m.status()
	if s.Version != newer+"-1" || hasCheck(s, "load") {
		t.Errorf("after the upgrade: %+v", s)
	}
	if got := m.read("/etc/nodeagent/config.yaml"); got != mine {
		t.Errorf("the configuration became %q", got)
	}
	if !strings.Contains(m.read("/etc/nodeagent/config.yaml.rpmnew"), "# New in "+newer) {
		t.Error("the new version's configuration is not beside it")
	}

	m.run("rpm", "-U", "--nodeps", "--oldpackage", inMachine(older))
	m.awaitReady()
	if s := m.status(); s.Version != older+"-1" || hasCheck(s, "load") {
		t.Errorf("after the downgrade: %+v", s)
	}
	changed := m.fails(1, "rpm", "-V", "--nodeps", "nodeagent").stdout
	if !strings.Contains(changed, "c /etc/nodeagent/config.yaml") || strings.Count(strings.TrimSpace(changed),
		"\n") != 0 {
		t.Errorf("rpm -V reports more than the changed configuration:\n%s", changed)
	}
}

func hasCheck(s agentStatus, id string) bool {
	for _, c := range s.Checks {
		if c.Check == id {
			return true
		}
	}
	return false
}

func TestRemoval(t *testing.T) {
	t.Parallel()
	m := boot(t)
	m.install()
	m.write("/etc/nodeagent/config.yaml", "# mine\n")
	m.run("rpm", "-e", "nodeagent")
	if out := m.try("pgrep", "-a", "nodeagent"); out.code != 1 {
		t.Errorf("still running: %s", out)
	}
	for _, gone := range []string{"/usr/bin/nodeagent", "/usr/lib/systemd/system/nodeagent.service",
		"/etc/systemd/system/multi-user.target.wants/nodeagent.service", "/etc/nodeagent/config.yaml"} {
		if m.exists(gone) {
			t.Errorf("%s is left", gone)
		}
	}
	m.fails(1, "test", "-e", "/run/nodeagent")
	if got := m.read("/etc/nodeagent/config.yaml.rpmsave"); got != "# mine\n" {
		t.Errorf("the operator's configuration became %q", got)
	}
	if got := m.run("systemctl", "list-units", "--all", "--plain", "--no-legend", "nodeagent*"); got != "" {
		t.Errorf("units are left: %s", got)
	}
	m.install() // and it can come back
}

var long = flag.Bool("long", false, "run the test too that compiles everything for another architecture")

func TestPackageOfTheOtherArchitecture(t *testing.T) {
	t.Parallel()
	need.Flag(t, *long, "-long: compiles everything for another architecture")
	needTools(t, "rpmbuild", "rpm", "rpm2cpio", "cpio")
	dir := t.TempDir()
	if err := makeRPM("rpm", older, dir, "RPM_ARCHES=aarch64"); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "nodeagent-"+older+"-1.aarch64.rpm")
	arch, err := command("rpm", "-qp", "--nosignature", "--qf", "%{ARCH}", file)
	if err != nil || !strings.HasSuffix(arch, "aarch64") {
		t.Errorf("architecture %q, %v", arch, err)
	}
	checkBinary(t, dir, file, elf.EM_AARCH64)
}

func TestPackage(t *testing.T) {
	t.Parallel()
	needMachine(t)
	file := prepared(t).file(older)
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if most := int64(20_000_000); info.Size() > most {
		t.Errorf("%d bytes, want less than %d", info.Size(), most)
	}
	t.Logf("%.1f MB", float64(info.Size())/1e6)
	checkBinary(t, t.TempDir(), file, elf.EM_X86_64)
	if out, err := command("rpmlint", "--strict", "-c", "packaging/rpm/rpmlint.toml", "packaging/rpm/nodeagent.spec",
		file); err != nil {
		t.Errorf("rpmlint: %s", out)
	}
}

// checkBinary checks the program in a package: for that machine, and static.
func checkBinary(t *testing.T, dir, file string, machine elf.Machine) {
	t.Helper()
	if out, err := command("sh", "-c", `rpm2cpio "$1" | cpio -id --quiet -D "$2" ./usr/bin/nodeagent`, "sh", file,
		dir); err != nil {
		t.Fatal(out)
	}
	program, err := elf.Open(filepath.Join(dir, "usr/bin/nodeagent"))
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	libraries, err := program.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]any{machine, 0}, []any{program.Machine, len(libraries)}); diff != "" {
		t.Errorf("machine and number of shared libraries: %s", diff)
	}
	for _, p := range program.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("it needs a dynamic loader")
		}
	}
}

func scan(t *testing.T, text string, into *int64) {
	t.Helper()
	if _, err := fmt.Sscan(text, into); err != nil {
		t.Fatalf("%q: %v", text, err)
	}
}
