package plugin

import (
	"path/filepath"
	"regexp"
	"time"

	"github.com/nodeagent/nodeagent/internal/host/program"
	"github.com/nodeagent/nodeagent/internal/setting"
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

// Validate returns the mistakes in s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	wrong.Check("name", nameForm.MatchString(s.Name), "%q must be lower case words with hyphens between them", s.Name)
	wrong.Check("path", filepath.IsAbs(s.Path), "%q is not an absolute path", s.Path)
	wrong.Check("directory", s.Dir == "" || filepath.IsAbs(s.Dir), "%q is not an absolute path", s.Dir)
	wrong.Check("reason", reasonForm.MatchString(s.Reason), "%q must be one word in CamelCase", s.Reason)
	wrong.Check("every", s.Every == 0 || s.Every >= leastEvery, "%s is less than %s", s.Every, leastEvery)
	wrong.Check("maxOutput", s.MaxOutput <= program.MaxOutput, "%d is above %d", s.MaxOutput, program.MaxOutput)
	if s.Condition != nil {
		wrong.Check("condition", reasonForm.MatchString(s.Condition.Type), "type %q must be one word in CamelCase",
			s.Condition.Type)
		wrong.Check("severity", s.Severity == "" || s.Severity == finding.Fatal, "only fatal findings set a condition")
	}
	return wrong.OrNil()
}
