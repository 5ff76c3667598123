// Package system finds faults of the kernel and of the machine as a whole: limits, clocks, modules, panics, reboots.
package system

import (
	"fmt"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// UsageSettings are the thresholds of limits. A raised finding, and its severity, are kept until the value is ten
// points lower.
type UsageSettings struct {
	WarnPercent  float64 `yaml:"warnPercent"`
	FatalPercent float64 `yaml:"fatalPercent"` // 0: no finding is fatal
}

// DefaultUsageSettings returns the settings that are used unless the configuration says otherwise: at 80 % there is
// time to act, at 95 % the next burst of pods fails.
func DefaultUsageSettings() UsageSettings { return UsageSettings{WarnPercent: 80, FatalPercent: 95} }

// keepPoints is by how much a value must be below a threshold before its finding is cleared.
const keepPoints = 10

// usage is the used amount of a resource and its limit.
type usage struct {
	used, limit uint64
}

func (u usage) percent() float64 { return 100 * float64(u.used) / float64(max(u.limit, 1)) }

func (u usage) String() string {
	return fmt.Sprintf("%d of %d (%.0f %%)", u.used, u.limit, u.percent())
}

// usageState keeps which subjects were fatal in their last evaluation, so that their severity does not flap. There are
// few: only subjects that the node needs can be fatal.
type usageState map[finding.Subject]bool

// near completes f, the finding about a usage, with its severity. It returns false below all thresholds. mayBeFatal is
// set if the node needs the subject.
func (m usageState) near(s UsageSettings, f finding.Finding, u usage, mayBeFatal bool) (finding.Finding, bool) {
	percent, fatalAt := u.percent(), s.FatalPercent
	if m[f.Subject] {
		fatalAt -= keepPoints
	}
	if mayBeFatal && s.FatalPercent > 0 && percent >= fatalAt {
		m[f.Subject] = true
		f.Severity = finding.Fatal
		return f, true
	}
	delete(m, f.Subject)
	f.Severity, f.BelowRaise = finding.Warning, percent < s.WarnPercent
	return f, percent >= s.WarnPercent-keepPoints
}
