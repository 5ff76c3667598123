package npd

import (
	statstypes "k8s.io/node-problem-detector/pkg/systemstatsmonitor/types"
)

func (f *File) decodeStats() error {
	c := &statstypes.SystemStatsConfig{}
	if err := f.decodeInto(c); err != nil {
		return err
	}
	if text := c.InvokeIntervalString; text != "" {
		if err := checkPositive(text, steps("invokeInterval")); err != nil {
			return f.at(err)
		}
	}
	if err := c.ApplyConfiguration(); err != nil {
		return f.at(problem{err.Error(), nil})
	}
	f.Stats = c
	return nil
}
