package kube

import (
	"bytes"
	"fmt"
	"strconv"
)

// maxSamples bounds one metric family.
const maxSamples = 100_000

// ParseMetric returns the samples of one metric family from the Prometheus text format, by their label string:
//
//	# TYPE kubelet_working_pods gauge
//	kubelet_working_pods{config="orphan",lifecycle="sync",static=""} 0
//
// No sample at all is no error: a family that an older kubelet does not know is absent, as is one without samples yet.
func ParseMetric(text []byte, family string) (map[string]float64, error) {
	samples := make(map[string]float64)
	for line := range bytes.Lines(text) {
		rest, ok := bytes.CutPrefix(bytes.TrimSpace(line), []byte(family))
		if !ok || len(rest) == 0 || (rest[0] != '{' && rest[0] != ' ' && rest[0] != '\t') {
			continue
		}
		labels, rest, ok := cutLabels(rest)
		fields := bytes.Fields(rest)
		if !ok || len(fields) == 0 || len(fields) > 2 { // value and perhaps a timestamp
			return nil, fmt.Errorf("malformed sample %q", clip(string(line)))
		}
		value, err := strconv.ParseFloat(string(fields[0]), 64)
		if err != nil {
			return nil, fmt.Errorf("malformed sample %q: %w", clip(string(line)), err)
		}
		if _, twice := samples[string(labels)]; twice {
			return nil, fmt.Errorf("sample given twice: %q", clip(string(line)))
		}
		samples[string(labels)] = value
		if len(samples) > maxSamples {
			return nil, fmt.Errorf("metric family %s: more than %d samples", family, maxSamples)
		}
	}
	return samples, nil
}

// cutLabels splits what follows the name into the label string and the rest. A label's value may contain braces and
// escaped quotes.
func cutLabels(text []byte) (labels, rest []byte, ok bool) {
	if text[0] != '{' {
		return nil, text, true
	}
	quoted := false
	for i := 1; i < len(text); i++ {
		switch {
		case quoted && text[i] == '\\':
			i++
		case text[i] == '"':
			quoted = !quoted
		case !quoted && text[i] == '}':
			return bytes.TrimSuffix(text[1:i], []byte(",")), text[i+1:], true
		}
	}
	return nil, nil, false
}
