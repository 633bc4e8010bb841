//! Blocks of hex digits in a document, by what is written behind their fence.

/// A document's text.
#[derive(Debug, Clone, Copy)]
pub struct Document(pub &'static str);

impl Document {
    /// The name and the bytes of every block that is fenced as `hex NAME`.
    pub fn examples(self) -> Vec<(String, Vec<u8>)> {
        let mut found = Vec::new();
        let mut lines = self.0.lines();
        while let Some(line) = lines.next() {
            let Some(name) = line.strip_prefix("```hex ") else {
                continue;
            };
            let digits: String = lines
                .by_ref()
                .take_while(|line| *line != "```")
                .flat_map(str::chars)
                .filter(|c| !c.is_whitespace())
                .collect();
            let bytes = (0..digits.len())
                .step_by(2)
                .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("hex digits"))
                .collect();
            found.push((name.to_owned(), bytes));
        }
        found
    }

    /// The bytes of the block of that name.
    pub fn example(self, name: &str) -> Vec<u8> {
        let mut all = self.examples().into_iter();
        let found = all.find(|(other, _)| other == name);
        found.expect("the document has this example").1
    }
}
