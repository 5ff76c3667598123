package npd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"k8s.io/node-problem-detector/pkg/types"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/owned"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// DoubtError is the reason not to run a file: users other than root can change it, or it is broken. The conditions that it
// declares, as far as it can be read, are unknown.
type DoubtError struct {
	File File
	Err  error // names the file
}

// Error implements error.
func (e *DoubtError) Error() string { return e.Err.Error() }

// Unwrap implements error.
func (e *DoubtError) Unwrap() error { return e.Err }

// declare sets what a file declares, whether or not the rest of it is valid.
func (f *File) declare(top map[string]json.RawMessage) {
	for key, value := range top {
		switch strings.ToLower(key) {
		case "source":
			_ = json.Unmarshal(value, &f.Source) // of another type: none
		case "conditions":
			_ = json.Unmarshal(value, &f.Conditions)
		}
	}
}

// maxDoubtful bounds the conditions of a doubtful file.
const maxDoubtful = 32

// addDoubt adds a check for each condition of a doubtful file: it cannot tell, and names the file and the reason.
// A file that others can change does not choose conditions of the Node.
func (m *Monitors) addDoubt(e *DoubtError, id string) {
	o := native{m.deps.Own, m.deps.Believed}
	doubt := host.Doubts{"nodeProblemDetector.files": e.Err}.Of()
	for i, c := range e.File.Conditions[:min(len(e.File.Conditions), maxDoubtful)] {
		if conditionProblem([]types.Condition{c}) != nil || hasCondition(e.File.Conditions[:i], c.Type) {
			continue
		}
		check := detect.Check{
			ID: conditionID(id, c.Type), Domain: domain, Every: time.Minute, Advice: filesAdvice,
			Summary: fmt.Sprintf("condition %s of %s", c.Type, e.File.Name),
			Doc:     detect.Doc{Reads: []string{e.File.Name}, Why: "The file is not run: its condition is unknown."},
			Run:     func(context.Context, *host.Host) ([]finding.Finding, error) { return nil, doubt },
		}
		if !errors.Is(e.Err, owned.ErrOthers) {
			check.Condition = o.condition(c)
		}
		m.wordings[check.ID] = finding.Wording{Source: e.File.Source, Condition: check.Condition}
		m.checks = append(m.checks, check)
	}
}

// idOf is the ID of the check of a file's temporary problems, and the prefix of the others.
func idOf(name string) string { return "npd-" + kebab(strings.TrimSuffix(path.Base(name), ".json")) }
