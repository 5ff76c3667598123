package checkkit

import (
	"github.com/nodeagent/nodeagent/pkg/detect"
)

// KernelWake is the wake of a check that wants to look when a rule which it confirms has recognised a record.
func KernelWake(check string) detect.Wake {
	return detect.Wake{Source: detect.WakeKernelLog, Match: "\x00" + check + "\x00"}
}
