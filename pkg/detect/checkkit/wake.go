package checkkit

import (
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// KernelWake is the wake of a check that is to look when a rule which it confirms has recognised a record of the
// kernel's log.
func KernelWake() detect.Wake { return detect.Wake{Source: detect.WakeKernelLog, Named: true} }
