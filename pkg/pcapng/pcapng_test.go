package pcapng

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// start is a time of 2026.
func start() time.Time { return time.Unix(0, 0x18ac2a8c31bc9a00) }

func described() Interface {
	return Interface{Application: "test", Name: "pod/a/b", Filter: "arp", SnapLength: 256}
}

func counters() Statistics {
	return Statistics{Start: start(), Time: start().Add(time.Second), Received: 5, Dropped: 2, Delivered: 3, Comment: "end"}
}

func file(tb testing.TB) []byte {
	tb.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, described())
	if err == nil {
		err = w.WritePacket(Packet{Time: start(), Direction: Outbound, Length: 60, Data: []byte{1, 2, 3, 4, 5}})
	}
	if err == nil {
		err = w.WriteStatistics(counters())
	}
	if err != nil || w.Written() != int64(b.Len()) {
		tb.Fatalf("got %d bytes, counted %d, error %v", b.Len(), w.Written(), err)
	}
	return b.Bytes()
}

// golden is the file as the specification has it, byte by byte (draft-ietf-opsawg-pcapng, sections 4.1 to 4.5).
const golden = `
0a0d0d0a 28000000 4d3c2b1a 0100 0000 ffffffff ffffffff section header block of 40 bytes, magic, version 1.0, unknown length
0400 0400 74657374  0000 0000  28000000                shb_userappl "test", end of options
01000000 34000000 0100 0000 00010000                   interface description block of 52 bytes: Ethernet, 256 bytes of a packet
0200 0700 706f642f612f6200                             if_name "pod/a/b"
0900 0100 09000000                                     if_tsresol: 10^-9
0b00 0400 00617270  0000 0000  34000000                if_filter: text "arp"
06000000 34000000 00000000 8c2aac18 009abc31           enhanced packet block of 52 bytes: interface 0, time
05000000 3c000000 0102030405000000                     5 bytes of 60
0200 0400 02000000  0000 0000  34000000                epb_flags: outbound
05000000 6c000000 00000000                             interface statistics block of 108 bytes: interface 0
`

func TestWriter_format(t *testing.T) {
	var want strings.Builder
	for line := range strings.Lines(golden) {
		want.WriteString(strings.NewReplacer(" ", "", "\n", "").Replace(line[:min(len(line), 55)]))
	}
	begin, err := hex.DecodeString(want.String())
	if err != nil {
		t.Fatal(err)
	}
	got := file(t)
	const sizeOfStatistics = 108
	if !bytes.HasPrefix(got, begin) {
		t.Errorf("got\n%s\nwant\n%s", hex.Dump(got), hex.Dump(begin))
	}
	if rest := len(got) - len(begin); rest != sizeOfStatistics-12 {
		t.Errorf("got statistics of %d bytes, want %d", rest+12, sizeOfStatistics)
	}
	if size := PacketSize(5); size != 52 {
		t.Errorf("PacketSize: got %d, want 52", size)
	}
}

func TestReader(t *testing.T) {
	content := file(t)
	r := NewReader(bytes.NewReader(content))
	var packets []Packet
	var statistics []Statistics
	var raw []byte
	for {
		b, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		raw = append(raw, b.Raw...)
		if b.Packet != nil {
			packets = append(packets, *b.Packet)
		}
		if b.Statistics != nil {
			statistics = append(statistics, *b.Statistics)
		}
	}
	if diff := cmp.Diff([]Packet{{Time: start(), Direction: Outbound, Length: 60, Data: []byte{1, 2, 3, 4, 5}}}, packets); diff != "" {
		t.Errorf("packets (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Statistics{counters()}, statistics); diff != "" {
		t.Errorf("statistics (-want +got):\n%s", diff)
	}
	if !bytes.Equal(raw, content) {
		t.Errorf("got %d bytes of blocks, want %d", len(raw), len(content))
	}
}

// readAll returns the error after the last block.
func readAll(content []byte) error {
	for r := NewReader(bytes.NewReader(content)); ; {
		if _, err := r.Next(); err != nil {
			return err
		}
	}
}

func TestReader_refuses(t *testing.T) {
	valid := file(t)
	set := func(offset int, b byte) []byte {
		c := bytes.Clone(valid)
		c[offset] = b
		return c
	}
	const packet = 40 + 52 // its offset
	for name, tc := range map[string]struct {
		content []byte
		want    error
	}{
		"the whole file":       {valid, io.EOF},
		"nothing":              {nil, io.EOF},
		"text":                 {[]byte(`{"kind":"Status"}`), ErrFormat},
		"half a head":          {valid[:len(valid)-104], io.ErrUnexpectedEOF},
		"half a block":         {valid[:len(valid)-1], io.ErrUnexpectedEOF},
		"without a section":    {valid[40:], ErrFormat},
		"two sections":         {append(bytes.Clone(valid), valid...), ErrFormat},
		"big-endian":           {set(8, 0x1a), ErrFormat},
		"version":              {set(12, 2), ErrFormat},
		"another link type":    {set(40+8, 113), ErrFormat},
		"a large block":        {set(packet+7, 1), ErrFormat},
		"a block without end":  {set(packet+4, 8), ErrFormat},
		"an odd block":         {set(packet+4, 53), ErrFormat},
		"a block of names":     {set(packet, 4), ErrFormat},
		"two lengths":          {set(packet+48, 60), ErrFormat},
		"more bytes than that": {set(packet+20, 40), ErrFormat},
		"a long option":        {set(packet+38, 40), ErrFormat},
	} {
		if err := readAll(tc.content); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
	}
}

// A packet or a comment that does not fit is cut or refused, and text of any length leaves a valid file.
func TestWriter_text(t *testing.T) {
	var b bytes.Buffer
	w, err := NewWriter(&b, Interface{Name: strings.Repeat("n", 70000), Filter: strings.Repeat("f", 70001)})
	if err == nil {
		err = w.WriteStatistics(Statistics{Comment: strings.Repeat("c", 70002)})
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := readAll(b.Bytes()); !errors.Is(err, io.EOF) {
		t.Errorf("got %v, want a valid file", err)
	}
}

// Blocks are never larger than the content, and their packets are parts of them.
func FuzzReader(f *testing.F) {
	f.Add(file(f))
	f.Add([]byte{0x0a, 0x0d, 0x0d, 0x0a, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, content []byte) {
		total := 0
		for r := NewReader(bytes.NewReader(content)); ; {
			b, err := r.Next()
			if err != nil {
				return
			}
			if total += len(b.Raw); total > len(content) || b.Packet != nil && len(b.Packet.Data) > len(b.Raw) {
				t.Fatalf("got blocks of %d bytes of %d", total, len(content))
			}
		}
	})
}
