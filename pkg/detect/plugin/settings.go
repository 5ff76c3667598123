package plugin

import (
	"fmt"
	"path/filepath"
	"regexp"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// Settings are one check that a user writes as a program.
type Settings struct {
	Name string   `yaml:"name"` // kebab-case; the check is called plugin-NAME
	Path string   `yaml:"path"` // absolute
	Args []string `yaml:"args,omitempty"`
	Dir  string   `yaml:"directory,omitempty"` // working directory; "/" unless set

	Every time.Duration `yaml:"every,omitempty"` // a minute unless set
	// 10 seconds unless set; then the program is killed with its children
	Timeout   time.Duration `yaml:"timeout,omitempty"`
	MaxOutput int           `yaml:"maxOutput,omitempty"` // bytes of its output in the message; 512 unless set

	Reason   string           `yaml:"reason"`             // CamelCase
	Severity finding.Severity `yaml:"severity,omitempty"` // warning unless set
	Summary  string           `yaml:"summary,omitempty"`  // the fault that its findings mean
	Advice   string           `yaml:"advice,omitempty"`   // the next step for the user
	// consecutive runs with a problem that raise a finding; 1 unless set
	Runs int `yaml:"runs,omitempty"`

	// Condition is the condition of the Node that it sets; its severity is then fatal.
	Condition *Condition `yaml:"condition,omitempty"`
}

// Condition is a condition of the Node, true if there is a fault.
type Condition struct {
	Type           string `yaml:"type"`
	HealthyReason  string `yaml:"healthyReason,omitempty"`
	HealthyMessage string `yaml:"healthyMessage,omitempty"`
}

const (
	defaultEvery     = time.Minute
	defaultTimeout   = 10 * time.Second
	defaultMaxOutput = 512
	leastEvery       = time.Second
)

var (
	nameForm   = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)
	reasonForm = regexp.MustCompile(`^[A-Z][A-Za-z0-9]+$`)
)

// Problems returns the mistakes in s, by key.
func (s Settings) Problems() map[string]string {
	problems := map[string]string{}
	if !nameForm.MatchString(s.Name) {
		problems["name"] = fmt.Sprintf("%q must be lower case words with hyphens between them", s.Name)
	}
	if !filepath.IsAbs(s.Path) {
		problems["path"] = fmt.Sprintf("%q is not an absolute path", s.Path)
	}
	if s.Dir != "" && !filepath.IsAbs(s.Dir) {
		problems["directory"] = fmt.Sprintf("%q is not an absolute path", s.Dir)
	}
	if !reasonForm.MatchString(s.Reason) {
		problems["reason"] = fmt.Sprintf("%q must be one word in CamelCase", s.Reason)
	}
	if s.Every != 0 && s.Every < leastEvery {
		problems["every"] = fmt.Sprintf("%s is less than %s", s.Every, leastEvery)
	}
	if s.MaxOutput > program.MaxOutput {
		problems["maxOutput"] = fmt.Sprintf("%d is above %d", s.MaxOutput, program.MaxOutput)
	}
	if s.Condition != nil {
		if !reasonForm.MatchString(s.Condition.Type) {
			problems["condition"] = fmt.Sprintf("type %q must be one word in CamelCase", s.Condition.Type)
		}
		if s.Severity != "" && s.Severity != finding.Fatal {
			problems["severity"] = "only fatal findings set a condition"
		}
	}
	return problems
}
