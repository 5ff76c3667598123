package npd

import (
	"fmt"
	"time"

	statstypes "k8s.io/node-problem-detector/pkg/systemstatsmonitor/types"
)

func (f *File) decodeStats() error {
	c := &statstypes.SystemStatsConfig{}
	if err := f.decodeInto(c); err != nil {
		return err
	}
	for key, text := range map[string]string{"invokeInterval": c.InvokeIntervalString} {
		if d, err := duration(text, time.Minute, steps(key)); err != nil {
			return f.at(err)
		} else if d < time.Millisecond {
			return f.at(problem{fmt.Sprintf("%q: must be above 0", text), steps(key)})
		}
	}
	if err := c.ApplyConfiguration(); err != nil {
		return f.at(problem{err.Error(), nil})
	}
	f.Stats = c
	return nil
}
