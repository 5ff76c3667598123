package npd

import (
	"fmt"
	"strings"
	"testing"
)

// TestConditionsOfOthers: a file may not claim a condition that kubelet or the network writes, whatever its kind, and
// whichever of its conditions it is; a condition with a similar name is the file's own.
func TestConditionsOfOthers(t *testing.T) {
	for _, kind := range []string{`"plugin":"custom"`, `"plugin":"kmsg"`, `"plugin":"journald","pluginConfig":{"source":"x"}`} {
		for condition, refused := range map[string]bool{"Ready": true, "MemoryPressure": true, "DiskPressure": true, "PIDPressure": true,
			"OutOfDisk": true, "NetworkUnavailable": true, "ReadyToo": false, "DiskPressureOfData": false, "memorypressure": false} {
			text := fmt.Sprintf(`{%s,"source":"c","conditions":[{"type":"Own","reason":"Fine"},{"type":%q,"reason":"Fine"}],"rules":[]}`, kind, condition)
			_, err := Decode("/etc/m.json", []byte(text))
			if (err != nil) != refused || refused && (!strings.Contains(err.Error(), condition) || !strings.HasPrefix(err.Error(), "/etc/m.json:1:")) {
				t.Errorf("%s, %s: %v", kind, condition, err)
			}
		}
	}
}

// TestConditionWithoutRule: like node-problem-detector, report each declared condition from the start, even one that no
// rule can make True, whatever the state of the log; each is one check.
func TestConditionWithoutRule(t *testing.T) {
	for name, text := range map[string]string{
		"plugin": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency","reason":"Normal","message":"m"},{"type":"B","reason":"BOk"}],
			"rules":[{"type":"permanent","condition":"B","reason":"BBad","path":"/bin/true"}]}`,
		"plugin, temporary": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency","reason":"Normal"}],
			"rules":[{"type":"temporary","reason":"BBad","path":"/bin/true"}]}`,
		"plugin, no rule, twice": `{"plugin":"custom","source":"c","conditions":[{"type":"NetworkLatency"},{"type":"NetworkLatency"}],"rules":[]}`,
		"log": `{"plugin":"journald","pluginConfig":{"source":"x"},"source":"k","conditions":[{"type":"NetworkLatency","reason":"Normal"}],
			"rules":[{"type":"temporary","reason":"X","pattern":"x"}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := New([]File{mustDecode(t, "/etc/m.json", text)}, nil, DefaultSettings(), Deps{Host: madeUp()})
			found := 0
			for _, c := range m.Checks() {
				if c.Condition.Type != "NetworkLatency" {
					continue
				}
				found++
				if findings, err := c.Run(t.Context(), madeUp()); len(findings) > 0 || err != nil {
					t.Errorf("%s: %v, %v", c.ID, findings, err)
				}
			}
			if found != 1 {
				t.Errorf("%d checks of the condition", found)
			}
		})
	}
}
