package need

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const child = "NODEAGENT_TEST_NEED"

// TestChild is no test of this run: TestSkips runs it, in a checkout of its own.
func TestChild(t *testing.T) {
	what := os.Getenv(child)
	Flag(t, what != "", "a child of TestSkips")
	switch what {
	case "nothing":
		Has(t, true, "cgroup v3")
	case "kernel":
		Kernel(t, "cgroup v3", errors.New("read something17: it differs each time"))
	case "program":
		Program(t, "sh", "no-such-program")
	case "flag":
		Flag(t, false, "-lab: uses a real node")
	case "child":
		Child(t, []byte("--- SKIP: TestChildOfAnother (0.00s)\n--- PASS: TestChild (0.00s)\n"))
	case "skipped child":
		Child(t, []byte("--- SKIP: TestChild (0.00s)\n"))
	}
}

func TestSkips(t *testing.T) {
	const listed = "# the list\n\ntest/need TestChild needs cgroup v3\n"
	for name, test := range map[string]struct {
		what, ci, list string
		short          bool
		want           string
		say            string // its output
		note           string // its note in the summary
	}{
		"the machine has it":        {what: "nothing", want: "PASS"},
		"the machine has it, short": {what: "nothing", short: true, want: "SKIP", note: "needs cgroup v3"},
		"it has not":                {what: "kernel", want: "SKIP", say: "something17", note: "needs cgroup v3"},
		"no program":                {what: "program", want: "SKIP", note: "needs no-such-program"},
		"CI, the machine has it":    {what: "nothing", ci: "1", want: "PASS"},
		"CI": {what: "kernel", ci: "1", list: "\n", want: "FAIL",
			say: "\ntest/need TestChild needs cgroup v3\n"},
		"CI, listed":             {what: "kernel", ci: "1", list: listed, want: "SKIP", note: "needs cgroup v3"},
		"CI, of another package": {what: "kernel", ci: "1", list: "test TestChild needs cgroup v3", want: "FAIL"},
		"CI, listed for another": {what: "program", ci: "1", list: listed, want: "FAIL",
			say: "needs no-such-program"},
		"CI, a list that is no list": {what: "kernel", ci: "1", list: "test/need TestChild", want: "FAIL",
			say: "want a package, a test and a reason"},
		"CI without a list": {what: "kernel", ci: "1", want: "FAIL", say: "no such file"},
		"CI, short":         {what: "kernel", ci: "1", short: true, want: "SKIP", note: "needs cgroup v3"},
		"CI, of another run": {what: "flag", ci: "1", want: "SKIP",
			note: "of another run: -lab: uses a real node"},
		"a child that ran":         {what: "child", ci: "1", want: "PASS"},
		"a child that was skipped": {what: "skipped child", ci: "1", want: "SKIP"}, // and has noted it
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			pkg, skips := filepath.Join(dir, "test/need"), filepath.Join(dir, "skips")
			if err := errors.Join(os.MkdirAll(pkg, 0o755), os.WriteFile(filepath.Join(dir, "go.mod"), nil,
				0o644)); err != nil {
				t.Fatal(err)
			}
			if test.list != "" {
				if err := os.WriteFile(filepath.Join(dir, "test/skips.txt"), []byte(test.list), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.v", "-test.run=^TestChild$")
			if test.short {
				cmd.Args = append(cmd.Args, "-test.short")
			}
			cmd.Dir, cmd.Env = pkg, append(os.Environ(), child+"="+test.what, "CI="+test.ci, "NODEAGENT_SKIPS="+skips)
			out, err := cmd.CombinedOutput()
			if !strings.Contains(string(out), "--- "+test.want+": TestChild ") ||
				(err != nil) != (test.want == "FAIL") {
				t.Errorf("want %s, got %v\n%s", test.want, err, out)
			}
			if !strings.Contains(strings.ReplaceAll(string(out), "\n        ", "\n"), test.say) {
				t.Errorf("does not say %q:\n%s", test.say, out)
			}
			noted, _ := os.ReadFile(skips) // the file does not exist if there is no note
			want := ""
			if test.note != "" {
				want = test.note + "\ttest/need TestChild\n"
			}
			if string(noted) != want {
				t.Errorf("noted %q, want %q", noted, want)
			}
		})
	}
}

func TestLineNames(t *testing.T) {
	for _, test := range []struct {
		pattern, test string
		want          bool
	}{
		{"TestA", "TestA", true},
		{"TestA", "TestA/b/c", true},
		{"TestA", "TestAB", false},
		{"TestA*", "TestAB/c", true},
		{"TestA/b", "TestA/b", true},
		{"TestA/b", "TestA/b/c", true},
		{"TestA/b", "TestA", false},
		{"TestA/b", "TestA/c", false},
		{"TestA/*", "TestA/c", true},
	} {
		if got := (line{"p", test.pattern, ""}).names("p", test.test); got != test.want {
			t.Errorf("%s of %s: %v", test.pattern, test.test, got)
		}
	}
}

// Each line of the list names a test that exists, by a pattern of its name.
func TestListNamesTests(t *testing.T) {
	text, err := os.ReadFile("../skips.txt")
	if err != nil {
		t.Fatal(err)
	}
	lines, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, l := range lines {
		top, _, _ := strings.Cut(l.test, "/")
		files, err := filepath.Glob(filepath.Join("../..", l.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, match := range function.FindAllSubmatch(source, -1) {
				found = found || (line{"", top, ""}).names("", string(match[1]))
			}
		}
		if !found {
			t.Errorf("test/skips.txt: %s has no %s", cmp.Or(l.pkg, "."), l.test)
		}
	}
}
