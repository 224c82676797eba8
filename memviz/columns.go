package memviz

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"io"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// The column file is Tenon's own form of a snapshot, quick to open however long the trace. It begins with columnMagic; then come sections,
// each a column of numbers or a chunk of events, all little-endian; then the directory, which is JSON; and at the end a trailer of 32
// bytes:
//
//	 0 uint64 where the directory begins
//	 8 uint64 its length
//	16 uint32 its CRC-32C
//	20 uint32 columnVersion
//	24 8 bytes columnMagic
//
// The directory gives name, place and CRC-32C of every section. Events are read a chunk at a time when someone looks at them; everything
// else is read when the file is opened, and checked.
const (
	columnMagic   = "TENONCOL"
	columnVersion = 2
	trailerSize   = 32
	// chunkEvents is the number of events in a chunk; the last of a device may have fewer.
	chunkEvents = 1 << 16
	// eventSize is the bytes of an event in a chunk: address, size, time, stack, stream, note, action, category.
	eventSize = 8 + 8 + 8 + 4 + 2 + 2 + 1 + 1
	// timeEvery is the distance in events of the times that are kept in memory.
	timeEvery = 64
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// section is a piece of the column file.
type section struct {
	Name   string `json:"name"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length"`
	CRC    uint32 `json:"crc"`
}

// source identifies the file that a column file was made from.
type source struct {
	Size    int64  `json:"size"`
	ModTime int64  `json:"mod_time_ns"`
	CRC     uint32 `json:"crc"` // of its first and last 64 KiB
}

// directory is the table of contents, with what is too small to be a column.
type directory struct {
	Source      source                `json:"source"`
	Sections    []section             `json:"sections"`
	Devices     []deviceEntry         `json:"devices"`
	Settings    map[string]any        `json:"settings"`
	Notes       []snapshot.Note       `json:"notes"`
	Annotations []snapshot.Annotation `json:"annotations"`
	Trees       []snapshot.Tree       `json:"trees,omitempty"`
}

// deviceEntry is what the directory says of a device.
type deviceEntry struct {
	Device  int        `json:"device"`
	Events  int        `json:"events"`
	Streams []uint64   `json:"streams"`
	OOMs    []int      `json:"ooms"` // indices of the events
	Chunks  [][2]int64 `json:"chunks"`
	CRCs    []uint32   `json:"crcs"` // of the chunks
}

// columnWriter writes a column file from front to back.
type columnWriter struct {
	w   *bufio.Writer
	off int64
	dir directory
	err error
	buf []byte
}

func newColumnWriter(w io.Writer) *columnWriter {
	c := &columnWriter{w: bufio.NewWriterSize(w, 1<<20)}
	c.write([]byte(columnMagic))
	return c
}

// write adds bytes; the first error stays.
func (c *columnWriter) write(b []byte) {
	if c.err == nil {
		_, c.err = c.w.Write(b)
		c.off += int64(len(b))
	}
}

// section adds a section whose bytes are the chunks that fill yields.
func (c *columnWriter) section(name string, fill func(yield func([]byte))) {
	s := section{Name: name, Offset: c.off}
	fill(func(b []byte) {
		s.CRC = crc32.Update(s.CRC, castagnoli, b)
		c.write(b)
	})
	s.Length = c.off - s.Offset
	c.dir.Sections = append(c.dir.Sections, s)
}

// number is what a column holds.
type number interface {
	uint8 | uint16 | uint32 | uint64 | int64
}

// widthOf is the bytes of a number in a column.
func widthOf[T number]() int {
	switch any(T(0)).(type) {
	case uint8:
		return 1
	case uint16:
		return 2
	case uint32:
		return 4
	}
	return 8
}

// appendColumn appends numbers to b.
func appendColumn[T number](b []byte, v []T) []byte {
	switch widthOf[T]() {
	case 1:
		for _, x := range v {
			b = append(b, byte(x))
		}
	case 2:
		for _, x := range v {
			b = binary.LittleEndian.AppendUint16(b, uint16(x))
		}
	case 4:
		for _, x := range v {
			b = binary.LittleEndian.AppendUint32(b, uint32(x))
		}
	default:
		for _, x := range v {
			b = binary.LittleEndian.AppendUint64(b, uint64(x))
		}
	}
	return b
}

// decodeColumn fills v from b, which has its length.
func decodeColumn[T number](v []T, b []byte) {
	switch widthOf[T]() {
	case 1:
		for i := range v {
			v[i] = T(b[i])
		}
	case 2:
		for i := range v {
			v[i] = T(binary.LittleEndian.Uint16(b[2*i:]))
		}
	case 4:
		for i := range v {
			v[i] = T(binary.LittleEndian.Uint32(b[4*i:]))
		}
	default:
		for i := range v {
			v[i] = T(binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
}

// columnPiece is the numbers that are converted at a time.
const columnPiece = 1 << 15

// putColumn adds a section of numbers, those of all parts one after another.
func putColumn[T number](c *columnWriter, name string, parts ...[]T) {
	c.section(name, func(yield func([]byte)) {
		for _, v := range parts {
			for len(v) > 0 {
				n := min(len(v), columnPiece)
				c.buf = appendColumn(c.buf[:0], v[:n])
				yield(c.buf)
				v = v[n:]
			}
		}
	})
}

// finish writes directory and trailer.
func (c *columnWriter) finish() error {
	text, err := json.Marshal(c.dir)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the column file's directory")
	}
	at := c.off
	c.write(text)
	t := binary.LittleEndian.AppendUint64(nil, uint64(at))
	t = binary.LittleEndian.AppendUint64(t, uint64(len(text)))
	t = binary.LittleEndian.AppendUint32(t, crc32.Checksum(text, castagnoli))
	t = binary.LittleEndian.AppendUint32(t, columnVersion)
	c.write(append(t, columnMagic...))
	if c.err == nil {
		c.err = c.w.Flush()
	}
	return c.err
}

// columnReader reads a column file.
type columnReader struct {
	r    io.ReaderAt
	size int64
	dir  directory
	at   map[string]section
	buf  []byte
}

// damaged is the error of a column file that is not what was written.
func damaged(what string) error {
	return fault.New(fault.Invalid, "the column file is damaged (%s); delete it and open the snapshot again", what)
}

// newColumnReader reads trailer and directory.
func newColumnReader(r io.ReaderAt, size int64) (*columnReader, error) {
	if size < trailerSize+int64(len(columnMagic)) {
		return nil, damaged("it is too short")
	}
	t := make([]byte, trailerSize)
	if _, err := r.ReadAt(t, size-trailerSize); err != nil {
		return nil, fault.Wrap(fault.System, err, "reading the column file")
	}
	le := binary.LittleEndian
	at, n := le.Uint64(t), le.Uint64(t[8:])
	if string(t[24:]) != columnMagic {
		return nil, damaged("its end is missing")
	}
	if v := le.Uint32(t[20:]); v != columnVersion {
		return nil, fault.New(fault.Invalid, "the column file has version %d, this program reads %d; delete it and open the "+
			"snapshot again", v, columnVersion)
	}
	if at > uint64(size) || n > uint64(size)-at {
		return nil, damaged("its directory is missing")
	}
	c := &columnReader{r: r, size: size, at: map[string]section{}}
	text, err := c.read(section{Name: "directory", Offset: int64(at), Length: int64(n), CRC: le.Uint32(t[16:])})
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &c.dir); err != nil {
		return nil, damaged("its directory does not parse")
	}
	for _, s := range c.dir.Sections {
		c.at[s.Name] = s
	}
	return c, nil
}

// read returns the bytes of a section, valid until the next call, after checking them.
func (c *columnReader) read(s section) ([]byte, error) {
	if s.Offset < 0 || s.Length < 0 || s.Offset > c.size || s.Length > c.size-s.Offset {
		return nil, damaged(s.Name + " lies outside")
	}
	if int64(cap(c.buf)) < s.Length {
		c.buf = make([]byte, s.Length)
	}
	b := c.buf[:s.Length]
	if _, err := io.ReadFull(io.NewSectionReader(c.r, s.Offset, s.Length), b); err != nil {
		return nil, fault.Wrap(fault.System, err, "reading the column file")
	}
	if crc32.Checksum(b, castagnoli) != s.CRC {
		return nil, damaged("the checksum of " + s.Name + " differs")
	}
	return b, nil
}

// getColumn reads a section of numbers.
func getColumn[T number](c *columnReader, name string) ([]T, error) {
	s, ok := c.at[name]
	if !ok {
		return nil, damaged(name + " is missing")
	}
	b, err := c.read(s)
	if err != nil {
		return nil, err
	}
	w := widthOf[T]()
	if len(b)%w != 0 {
		return nil, damaged(name + " has a wrong length")
	}
	v := make([]T, len(b)/w)
	decodeColumn(v, b)
	return v, nil
}
