package accesslog

import "bytes"

// Line is a line of a log file.
type Line struct {
	File   string
	Number int64  // in its file, counted from 1
	Text   []byte // without the line ending; valid until [Chunk.Release]
	// Err says why the line can't be read: it is too long, or its file ends within compressed data.
	// Then Text is empty.
	Err error
}

// Chunk is some consecutive lines of a log.
type Chunk struct {
	buffer *[]byte
	data   []byte
	runs   []run
}

// run is consecutive lines of one file.
type run struct {
	file   string
	first  int64 // the number of the first line
	end    int   // where the data of the run end in the chunk
	broken error // if not nil, another line follows the data, which can't be read
}

// Each calls yield for each line, in their order. It leaves out empty lines.
func (c *Chunk) Each(yield func(Line)) {
	begin := 0
	for _, r := range c.runs {
		number := r.first
		for data := c.data[begin:r.end]; len(data) > 0; number++ {
			var text []byte
			text, data, _ = bytes.Cut(data, []byte("\n"))
			if text = bytes.TrimSuffix(text, []byte("\r")); len(text) > 0 {
				yield(Line{File: r.file, Number: number, Text: text})
			}
		}
		if r.broken != nil {
			yield(Line{File: r.file, Number: number, Err: r.broken})
		}
		begin = r.end
	}
}

// Release gives back the memory of the chunk. The texts of its lines lose their meaning, and also each [Request]
// that was parsed from them.
func (c *Chunk) Release() {
	if c.buffer != nil {
		if cap(c.data) > cap(*c.buffer) { // it has grown
			*c.buffer = c.data
		}
		buffers.Put(c.buffer)
	}
	*c = Chunk{}
}

// newChunk returns an empty chunk with memory.
func newChunk() *Chunk {
	buffer := buffers.Get().(*[]byte)
	return &Chunk{buffer: buffer, data: (*buffer)[:0]}
}

// addRun appends a run, whose lines end the data of the chunk.
func (c *Chunk) addRun(file string, first int64, broken error) {
	c.runs = append(c.runs, run{file: file, first: first, end: len(c.data), broken: broken})
}
