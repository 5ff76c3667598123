package archtest

import (
	"os/exec"
	"strings"
	"testing"
)

// TestAgentLinksNoCenter: the agent is small; it does not link the event center's storage and evaluation.
func TestAgentLinksNoCenter(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace", "../../cmd/nodeagent")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	if len(deps) < 100 {
		t.Fatalf("only %d packages", len(deps))
	}
	for _, dep := range deps {
		for _, not := range []string{"modernc.org/", "github.com/nats-io/", "github.com/google/cel-go",
			module + "pkg/eventcenter", module + "pkg/web"} {
			if strings.HasPrefix(dep, not) {
				t.Errorf("cmd/nodeagent links %s", dep)
			}
		}
	}
}
