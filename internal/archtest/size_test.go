package archtest

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// TestLinkerDropsWhatIsUnused: no code of the agent calls methods by names known only at run time
// (reflect.Value.MethodByName, text/template). For those the linker keeps every method of every type: a sixth of the
// program, and of its memory. The linker reports such functions (cmd/link, -dumpdep).
func TestLinkerDropsWhatIsUnused(t *testing.T) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	tags := regexp.MustCompile(`(?m)^TAGS *:= *(\S+)$`).FindSubmatch(makefile)
	if tags == nil {
		t.Fatal("the Makefile names no TAGS")
	}
	cmd := exec.CommandContext(t.Context(), "go", "build", "-tags", string(tags[1]), "-ldflags", "-dumpdep", "-o",
		filepath.Join(t.TempDir(), "nodeagent"), "../../cmd/nodeagent")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out[max(0, len(out)-2000):])
	}
	if !bytes.Contains(out, []byte(" -> main.main")) {
		t.Fatalf("the linker did not print its dependencies: %.300s", out)
	}
	named := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^(\S+) <ReflectMethod>`).FindAllSubmatch(out, -1) {
		named[string(m[1])] = true
	}
	for function := range named {
		t.Errorf("%s calls methods by name", function)
	}
}
