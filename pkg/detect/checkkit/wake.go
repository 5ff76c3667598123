package checkkit

import (
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// KernelWake is the wake of a check that runs when a rule that it confirms has matched a record of the kernel's log.
func KernelWake() detect.Wake { return detect.Wake{Source: detect.WakeKernelLog, Named: true} }

// LogWake is the wake of a check that runs when a record of the kernel's log contains text.
func LogWake(text string) detect.Wake { return detect.Wake{Source: detect.WakeKernelLog, Match: text} }
