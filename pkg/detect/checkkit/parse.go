package checkkit

import (
	"fmt"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Parse reads a file and parses its content, as text or bytes. An error of either step names the file.
func Parse[Content string | []byte, T any](files host.Files, name string, parse func(Content) (T, error)) (T, error) {
	data, err := files.Read(name)
	if err != nil {
		var none T
		return none, err
	}
	value, err := parse(Content(data))
	if err != nil {
		return value, fmt.Errorf("read %s: %w", name, err)
	}
	return value, nil
}

// InLine is an error in a line of a file.
func InLine(line string, err error) error {
	return fmt.Errorf("line %q: %w", Sanitize(line, MaxLine), err)
}
