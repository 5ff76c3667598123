package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// A missing access right is printed once, with the checks that it blinds; other errors are printed with their check.
func TestCheckPrintsALackOnce(t *testing.T) {
	denied := &finding.AccessError{Access: finding.Access{Lack: "kubelet denies: get nodes/metrics", Grant: "bind a role"},
		Err: errors.New("status 403: Forbidden")}
	checks := []detect.Check{{ID: "a", Domain: "kubernetes"}, {ID: "b", Domain: "cpu"}, {ID: "c", Domain: "cpu"}}
	observations := []finding.Observation{{Check: "a", Err: denied}, {Check: "b", Err: denied},
		{Check: "c", Err: errors.New("read /proc/x")}}
	var out strings.Builder
	if err := printCheck(&out, "node-1", checks, observations, time.Second); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for part, want := range map[string]int{"kubelet denies: get nodes/metrics; to grant it: bind a role": 1, "a, b: kubelet": 1,
		"status 403": 0, "c: could not tell: read /proc/x": 1, "3 could not tell": 1} {
		if got := strings.Count(text, part); got != want {
			t.Errorf("%q: %d times, want %d, in %s", part, got, want, text)
		}
	}
	result := summarize(observations)
	if len(result.Errors) != 3 || len(result.Lacks) != 1 || len(result.Lacks[0].Checks) != 2 {
		t.Errorf("%+v", result)
	}
}
