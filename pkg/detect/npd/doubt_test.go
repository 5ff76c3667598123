package npd

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

// TestConditionsInDoubt: each condition of a doubtful file is unknown, and the check names the file and the
// reason. A file that others can change chooses no condition of the Node.
func TestConditionsInDoubt(t *testing.T) {
	const log = `{"plugin":"kmsg","source":"k","conditions":[{"type":"KernelDeadlock","reason":"Fine"},{"type":"ReadonlyFilesystem"}],"rules":[`
	for name, test := range map[string]struct {
		text string
		err  error // nil: of Decode
		want []string
	}{
		"a pattern is wrong":          {log + `{"type":"permanent","condition":"KernelDeadlock","reason":"X","pattern":"["}]}`, nil, []string{"KernelDeadlock", "ReadonlyFilesystem"}},
		"a type is wrong":             {strings.Replace(log, `"rules":[`, `"rules":{}}`, 1), nil, []string{"KernelDeadlock", "ReadonlyFilesystem"}},
		"a plugin's rule is wrong":    {`{"Plugin":"custom","Conditions":[{"type":"NTPProblem"}],"rules":[{"type":"x"}]}`, nil, []string{"NTPProblem"}},
		"an unknown plugin":           {strings.Replace(log, "kmsg", "syslog", 1) + `]}`, nil, []string{"KernelDeadlock", "ReadonlyFilesystem"}},
		"it claims kubelet's":         {strings.Replace(log, "KernelDeadlock", "DiskPressure", 1) + `]}`, nil, []string{"ReadonlyFilesystem"}},
		"no JSON":                     {log, nil, nil},
		"conditions of another type":  {`{"plugin":"kmsg","conditions":{"type":"A"},"rules":[]}`, nil, nil},
		"one condition twice":         {`{"plugin":"kmsg","conditions":[{"type":"A"},{"type":"A"}],"rules":{}}`, nil, []string{"A"}},
		"thousands of conditions":     {`{"plugin":"x","conditions":[` + strings.Repeat(`{"type":"A"},`, 9000) + `{"type":"B"}]}`, nil, []string{"A"}},
		"others can change it":        {log + `]}`, fmt.Errorf("/etc/npd/m.json: mode 0666: %w", owned.ErrOthers), []string{"KernelDeadlock", "ReadonlyFilesystem"}},
		"others can change it, wrong": {log + `{}]}`, fmt.Errorf("/etc/npd/m.json: owned by user 1000: %w", owned.ErrOthers), []string{"KernelDeadlock", "ReadonlyFilesystem"}},
	} {
		t.Run(name, func(t *testing.T) {
			file, err := Decode("/etc/npd/m.json", []byte(test.text))
			if test.err != nil {
				err = test.err
			}
			if err == nil {
				t.Fatal("the file is fine")
			}
			m := New(nil, []error{&DoubtError{File: file, Err: err}}, DefaultSettings(), Deps{Host: madeUp()})
			var got []string
			for _, c := range m.Checks() {
				found, runErr := c.Run(t.Context(), madeUp())
				if c.ID == "npd-files" {
					if len(found) != 1 || !strings.Contains(found[0].Message, err.Error()) {
						t.Errorf("npd-files: %v", found)
					}
					continue
				}
				_, condition, _ := strings.Cut(c.Summary, "condition ")
				condition, _, _ = strings.Cut(condition, " of ")
				got = append(got, condition)
				if len(found) > 0 || !errors.Is(runErr, hosterr.ErrDoubt) || !strings.Contains(runErr.Error(), err.Error()) {
					t.Errorf("%s: %v, %v", c.ID, found, runErr)
				}
				if want := condition; errors.Is(err, owned.ErrOthers) != (c.Condition.Type == "") || c.Condition.Type != "" && c.Condition.Type != want {
					t.Errorf("%s: condition %q of the Node", c.ID, c.Condition.Type)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("unknown: %v, want %v", got, test.want)
			}
		})
	}
}
