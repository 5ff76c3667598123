package kernellog

import "encoding/json"

// JournalField is a field of a journal entry: a string, an array of bytes if it is not printable UTF-8, or an array of
// those if the field occurs several times; then the first counts.
// https://systemd.io/JOURNAL_EXPORT_FORMATS/#journal-json-format
type JournalField []byte

// UnmarshalJSON implements json.Unmarshaler.
func (f *JournalField) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*f = JournalField(text)
		return nil
	}
	if json.Unmarshal(data, (*[]byte)(f)) == nil {
		return nil
	}
	var several []json.RawMessage
	if err := json.Unmarshal(data, &several); err != nil || len(several) == 0 {
		return err
	}
	return f.UnmarshalJSON(several[0])
}
