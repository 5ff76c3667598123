package child_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/mutate/child"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
)

func TestMain(m *testing.M) { os.Exit(mutatetest.Main(m)) }

// late is initialized after package child, as most of the agent's libraries are.
var late = announce()

func announce() bool {
	if os.Args[0] == child.Name {
		fmt.Fprintln(os.Stderr, "initialised more than a change needs")
	}
	return true
}

// start starts this binary as a child.
func start(t *testing.T, request string) (stdout, stderr string, err error) {
	t.Helper()
	if !late {
		t.Error("not initialised")
	}
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
	cmd.Args, cmd.Stdin, cmd.Stdout, cmd.Stderr = []string{child.Name}, strings.NewReader(request), &out, &complaint
	err = cmd.Run()
	return out.String(), complaint.String(), err
}

// A child finishes its work before packages that it does not need are initialized.
func TestChildIsEarly(t *testing.T) {
	out, complaint, err := start(t, `{"op":"tree","base":"/","uid":"no-such-directory"}`)
	if err != nil || out != `{"outcome":"done"}`+"\n" || complaint != "" {
		t.Errorf("%q, %q, %v", out, complaint, err)
	}
}

// A request that makes no sense changes nothing.
func TestChildRefuses(t *testing.T) {
	for request, want := range map[string]string{
		`{"op":"reboot"}`:           `{"outcome":"refused","why":"unknown operation \"reboot\""}`,
		`{"op":"tree","base":"tmp"`: "", // cut
		"":                          "",
		`{"op":"tree","base":"` + strings.Repeat("/", 1<<20) + `"}`: "", // too long
	} {
		out, complaint, err := start(t, request)
		if strings.TrimSpace(out) != want || (err != nil) != (want == "") || (complaint != "") != (want == "") {
			t.Errorf("%.40s: %q, %q, %v", request, out, complaint, err)
		}
	}
}
